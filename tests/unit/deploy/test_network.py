"""Network policies against who really calls whom: labels that the gateway sets, ports that programs listen on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.deploy.policies import DEPLOY, FUNCTIONS, FURTHER, Edge, World, allowed

INGRESS, SEGMENT, EXPERT = "tiny", "tiny-segment-0", "tiny-expert-0-1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(write_pipeline(tmp_path_factory.mktemp("pipelines") / "tiny"))


def test_everything_that_has_to_be_called_can_be(world: World) -> None:
    refused = [str(edge) for edge in world.needed() if not allowed(world.policies, edge)]
    assert refused == []


def test_the_needed_edges_are_those_of_the_flags_jobs_and_pipelines(world: World) -> None:
    """So that the test above cannot pass for want of edges."""
    found = {str(edge) for edge in world.needed()}
    assert found > {
        *("gateway → smoe-controller:8083/TCP", "gateway → nats:4222/TCP", "gateway → tiny-expert-0-1:8080/TCP"),
        *("smoe-controller → prometheus:9090/TCP", "smoe-controller → gateway:8080/TCP", "tiny → gateway:8080/TCP"),
        *("prometheus → gateway:8082/TCP", "prometheus → tiny:8080/TCP", "prometheus → smoe-controller:8083/TCP"),
        *("prometheus → node:10250/TCP", "tiny → tiny-segment-0:8080/TCP", "tiny-segment-0 → tiny-expert-0-1:8080/TCP"),
    }
    assert not {f"prometheus → {name}:8080/TCP" for name in (SEGMENT, EXPERT, "command")} & found


FORBIDDEN = {
    "a pod of another namespace calls no function, whatever its labels": [
        ("stranger", name, 8080) for name in (INGRESS, SEGMENT, EXPERT, "command")
    ],
    "a pod next to the gateway calls no function either": [
        ("neighbour", name, 8080) for name in (INGRESS, SEGMENT, EXPERT, "command")
    ],
    "controller and NATS call no function": [
        (name, function, 8080) for name in ("smoe-controller", "nats") for function in (INGRESS, EXPERT, "command")
    ],
    "Prometheus calls ingresses alone": [("prometheus", name, 8080) for name in (SEGMENT, EXPERT, "command")],
    "a command reaches no pipeline, and a pipeline no command": [
        *(("command", name, 8080) for name in (INGRESS, SEGMENT, EXPERT)),
        *((name, "command", 8080) for name in (INGRESS, SEGMENT, EXPERT)),
    ],
    "namespaces of functions are apart": [
        (f"{INGRESS}@{FURTHER}", EXPERT, 8080),
        (INGRESS, f"{EXPERT}@{FURTHER}", 8080),
        (f"command@{FURTHER}", "command", 8080),
    ],
    "a function reaches neither API server, nodes, the world, nor what watches over it": [
        (source, target, port)
        for source in (INGRESS, SEGMENT, EXPERT, "command")
        for target, port in (
            *(("API server", 443), ("API server", 6443), ("node", 10250), ("world", 443), ("world", 80)),
            *(("smoe-controller", 8083), ("prometheus", 9090), ("gateway", 8082), ("nats", 4222)),
        )
    ],
    "metrics, view and NATS are not for others": [
        *(("stranger", *there) for there in (("gateway", 8082), ("smoe-controller", 8083), ("prometheus", 9090))),
        *(("neighbour", *there) for there in (("gateway", 8082), ("smoe-controller", 8083), ("nats", 4222))),
        ("world", "prometheus", 9090),
        ("grafana", "smoe-controller", 8083),
    ],
    "controller and Prometheus do not reach the world": [
        (name, "world", port) for name in ("smoe-controller", "prometheus") for port in (80, 8443)
    ],
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_nobody_else_is_let_through(world: World, name: str) -> None:
    for source, target, port in FORBIDDEN[name]:
        edge = Edge(world.by_name[source], world.by_name[target], port)
        assert not allowed(world.policies, edge), str(edge)


def parts(policies: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The policies without one peer, one port, or one rule without peers; each with what is gone."""
    for at, policy in enumerate(policies):
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for number, rule in enumerate(policy["spec"].get(direction, ())):
                for what in (peers, "ports"):
                    for index, one in enumerate(rule.get(what, ())):
                        less = copy.deepcopy(policies)
                        rules = less[at]["spec"][direction]
                        del rules[number][what][index]
                        if not rules[number][what]:  # an empty list stands for all of them
                            del rules[number]
                        name = policy["metadata"]["name"]
                        yield f"{policy['metadata']['namespace']}/{name} {direction} {what} {one}", less


def test_policies_let_through_nothing_that_nothing_needs(world: World) -> None:
    needed = world.needed()
    cases = list(parts(world.policies))
    assert len(cases) > 30
    spare = [what for what, less in cases if all(allowed(less, edge) for edge in needed)]
    assert spare == []


def test_with_the_weights_cache_functions_reach_stores_outside_and_nothing_else(world: World) -> None:
    stores = list(yaml.safe_load_all((DEPLOY / "components" / "weights-cache" / "stores.yaml").read_text()))
    policies = [*world.policies, *stores]
    assert stores[0]["metadata"]["namespace"] == FUNCTIONS
    expert, pod = world.by_name[EXPERT], world.by_name
    assert allowed(policies, Edge(expert, pod["world"], 443))
    for target, port in (("world", 80), ("node", 443), ("smoe-controller", 443), ("node", 10250)):
        assert not allowed(policies, Edge(expert, pod[target], port)), target
