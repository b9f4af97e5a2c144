"""Functions put straight into the double: as this project's gateway writes them, and as OpenFaaS does."""

from __future__ import annotations

import os
from typing import Any

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import FunctionSpec
from tests.doubles.kubernetes.running import Running

NAMESPACE = "openfaas-fn"
RUN_IMAGE = os.environ.get("SMOE_TEST_IMAGE", "")
"""An image that the cluster has: its kubelets run containers of it, and need no double's help."""
IMAGE = RUN_IMAGE or "smoe/function:1"


def spec(name: str, **changes: Any) -> FunctionSpec:
    """A function of pipeline ``m``: one replica of 256 MiB and one core, four calls at once, told live."""
    values: dict[str, Any] = {
        "image": IMAGE,
        "env_vars": {"max_inflight": "4", "smoe_pipeline": "m"},
        "labels": {"smoe.pipeline": "m"},
        "annotations": {"smoe.live-settings": "true"},
        "limits": {"memory": "256Mi", "cpu": "1000m"},
        "requests": {"memory": "256Mi", "cpu": "50m"},
    }
    return FunctionSpec(name, **{**values, **changes})


def put(double: Running, function: FunctionSpec, replicas: int = 1) -> None:
    """Deploy as the gateway would, into the namespace of that name."""
    cluster = KubernetesSettings(namespace=function.namespace)
    document = objects.deployment(function, cluster, frozenset())
    document["spec"]["replicas"] = replicas

    def deploy() -> None:
        made = double.store.create("deployments", document, "smoe-gateway")
        double.store.create("services", objects.service(function, made, cluster), "smoe-gateway")

    double.do(deploy)


def put_openfaas(double: Running, name: str, replicas: int = 1, owner: str | None = "Function", **labels: str) -> None:
    """A Deployment of OpenFaaS's, in its namespace."""
    document = openfaas_deployment(name, NAMESPACE, replicas, owner, **labels)
    double.do(lambda: double.store.create("deployments", document, "faas-netes"))


def openfaas_deployment(
    name: str, namespace: str, replicas: int = 1, owner: str | None = "Function", **labels: str
) -> dict[str, Any]:
    """A Deployment as OpenFaaS makes it; ``owner`` None: the Community Edition, which has no operator."""
    resources = {"limits": {"memory": "256Mi", "cpu": "1"}, "requests": {"memory": "256Mi", "cpu": "50m"}}
    pod = {
        "containers": [
            {
                "name": name,
                "image": IMAGE,
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "max_inflight", "value": "4"}, {"name": "smoe_pipeline", "value": "m"}],
                "resources": resources,
            }
        ]
    }
    owners = [] if owner is None else [{"apiVersion": "openfaas.com/v1", "kind": owner, "name": name, "uid": "1"}]
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"faas_function": name},
            "annotations": {"prometheus.io.scrape": "false"},
            "ownerReferences": owners,
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"faas_function": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"faas_function": name, "smoe.pipeline": "m", **labels}},
                "spec": pod,
            },
        },
    }


def writes(double: Running) -> list[str]:
    """``verb resource`` of every write so far."""
    reads = ("get", "list", "watch")
    return double.do(lambda: [f"{call.verb} {call.resource}" for call in double.api.calls if call.verb not in reads])


def quota(double: Running, **hard: str) -> None:
    """A quota of the functions' namespace, in place of the one before."""
    document = {"metadata": {"name": "team", "namespace": NAMESPACE}, "spec": {"hard": hard}}

    def put_in_place() -> None:
        if double.store.find("resourcequotas", NAMESPACE, "team") is not None:
            double.store.delete("resourcequotas", NAMESPACE, "team")
        double.store.create("resourcequotas", document, "admin")

    double.do(put_in_place)
