"""The Kubernetes backend: functions as Deployments and Services of any cluster, no OpenFaaS installed.

It translates between OpenFaaS's functions and Kubernetes' objects, follows the API server by watches and is without a
state of its own: several gateways may stand side by side, and one that goes leaves every function running. It must
never import ``autoscaler``, ``rl`` or torch, decide how many replicas there should be, or hold the values of secrets.
"""
