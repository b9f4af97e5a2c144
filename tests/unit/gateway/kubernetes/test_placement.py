"""A plan of replicas by node becomes affinity, spread and the pods' knowledge of where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.pods import replicas
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec, InvalidSpecError
from tests.doubles.kubernetes.fixtures import Backends, ready, until
from tests.doubles.kubernetes.functions import spec

KEY = "kubernetes.io/hostname"


def placed(text: str) -> FunctionSpec:
    return spec("f", annotations={"smoe.live-settings": "true", "smoe.placement": text})


def pod(text: str) -> Any:
    made = objects.deployment(placed(text), KubernetesSettings(), frozenset())
    kubernetes_validate.validate(made, "1.33", strict=True)
    return made["spec"]["template"]["spec"]


def test_replicas_run_on_the_plans_nodes_only_and_one_on_each() -> None:
    made = pod("node-b=1, node-a.example=1")
    required = made["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expected = {"key": KEY, "operator": "In", "values": ["node-a.example", "node-b"]}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [expected]}]}
    assert "preferredDuringSchedulingIgnoredDuringExecution" not in made["affinity"]["nodeAffinity"]
    (spread,) = made["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"], spread["whenUnsatisfiable"]) == (1, KEY, "DoNotSchedule")
    assert spread["labelSelector"] == {"matchLabels": {"faas_function": "f"}}


def test_nodes_with_more_replicas_are_preferred_within_the_plans_difference() -> None:
    made = pod("a=4,b=1,c=0")
    preferred = made["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(one["weight"], one["preference"]["matchExpressions"][0]["values"]) for one in preferred] == [
        (100, ["a"]),
        (25, ["b"]),
    ]
    assert made["topologySpreadConstraints"][0]["maxSkew"] == 3


def test_without_a_plan_pods_run_anywhere() -> None:
    assert not {"affinity", "topologySpreadConstraints"} & set(pod(""))


@pytest.mark.parametrize("text", ["a", "a=x", "a=1,a=2", "a=0", "=1", "Node=1", "a_b=1", "a..b=1"])
def test_a_plan_that_no_cluster_has_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"smoe\.placement"):
        objects.check(placed(text))


def test_another_plan_takes_new_pods_and_the_same_plan_written_otherwise_does_not() -> None:
    assert not objects.only_live_differs(placed("a=1,b=1"), placed("a=2,b=1"))
    assert objects.only_live_differs(placed("a=1,b=1"), placed(" b=1 , a=1, c=0"))


def test_a_pod_knows_its_machine_and_no_function_may_override_it() -> None:
    made = objects.deployment(spec("f"), KubernetesSettings(), frozenset())
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "smoe_machine", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in env
    with pytest.raises(InvalidSpecError, match="smoe_machine"):
        objects.check(spec("f", env_vars={"smoe_machine": "a"}))


def test_a_replica_is_known_with_its_node_once_it_is_scheduled() -> None:
    pods = [{"metadata": {"name": "p"}, "spec": {"nodeName": "a"}}, {"metadata": {"name": "q"}, "spec": {}}]
    assert [replica.machine for replica in replicas(pods, {})] == ["a", ""]


async def test_a_changed_plan_sets_the_number_of_replicas(backends: Backends) -> None:
    backend = await backends()
    await backend.create(spec("f"), 1)
    await until(backend, ready(1))
    nodes = sorted(replica.machine for replica in backend.get("f", DEFAULT_NAMESPACE).replicas)
    await backend.update(replace(placed(f"{nodes[0]}=2"), env_vars=spec("f").env_vars))
    await until(backend, ready(2))
    await backend.update(placed(f"{nodes[0]}=2"))
    assert backend.get("f", DEFAULT_NAMESPACE).desired_replicas == 2
