"""Kubernetes as a platform: replicas, live resizes, roll-outs and what stands in their way, straight at the API server.

It works on the Deployments of this project's gateway and on those of OpenFaaS Standard and Enterprise. Never here:
which change to make; deploying and deleting functions; reading secrets.
"""

from autoscaler.platform.kubernetes.client import BURST, RATE_PER_S, KubernetesClient, Rate, connect
from autoscaler.platform.kubernetes.conditions import Condition, ConditionKind
from autoscaler.platform.kubernetes.deployments import GpuSettings
from autoscaler.platform.kubernetes.platform import KubernetesPlatform

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
