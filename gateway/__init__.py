"""An OpenFaaS-compatible gateway for one machine: front door, control door, and backends that run replicas.

It speaks OpenFaaS's REST API, forwards calls to replicas and counts them. It must never know of experts, layers,
models or scaling policies, and it imports no other room.
"""
