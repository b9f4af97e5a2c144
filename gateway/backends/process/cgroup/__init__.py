"""Limits and measured use of CPU and memory by cgroups, version 1 or 2, one cgroup a slot.

It only touches cgroups below its own and those of gateways that are dead, and never fails because there are none: then
limits are not enforced, and the reason is in the backend's notes.
"""
