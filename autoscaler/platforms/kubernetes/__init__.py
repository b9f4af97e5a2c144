"""Kubernetes as a platform: replicas, live resizes, roll-outs and what stands in their way, straight at the API server.

It works on the Deployments of this project's gateway and on those of OpenFaaS Standard and Enterprise. Never here:
which change to make; deploying and deleting functions; reading secrets.
"""

from autoscaler.platforms.kubernetes.client import BURST, RATE_PER_S, KubernetesClient, Rate, connect
from autoscaler.platforms.kubernetes.conditions import Condition, ConditionKind
from autoscaler.platforms.kubernetes.deployments import GpuSettings
from autoscaler.platforms.kubernetes.platform import KubernetesPlatform

__all__ = [
    "BURST",
    "RATE_PER_S",
    "Condition",
    "ConditionKind",
    "GpuSettings",
    "KubernetesClient",
    "KubernetesPlatform",
    "Rate",
    "connect",
]
