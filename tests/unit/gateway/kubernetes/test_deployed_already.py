"""What a gateway's settings and its words do for functions that are deployed already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from gateway.client.client import GatewayClient
from gateway.client.errors import NotReadyError
from gateway.contract import DEFAULT_NAMESPACE
from gateway.specs import status_of
from tests.doubles.kubernetes.fixtures import Backends, ready, until, until_so
from tests.doubles.kubernetes.functions import spec
from tests.doubles.kubernetes.running import Running

pytestmark = pytest.mark.timeout(600)
F = spec("f")


def pod_spec(double: Running) -> dict[str, Any]:
    found: dict[str, Any] = double.deployment("f")["spec"]["template"]["spec"]
    return found


async def test_a_deploy_brings_the_gateway_s_settings_to_a_function_that_is_the_same(
    double: Running, backends: Backends
) -> None:
    first = await backends()
    await first.create(F, 1)
    await until(first, ready(1))
    assert pod_spec(double)["containers"][0]["imagePullPolicy"] == "Always"
    second = await backends(image_pull_policy="IfNotPresent", lost_s=120)
    await second.update(F)
    assert pod_spec(double)["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert {one["tolerationSeconds"] for one in pod_spec(double)["tolerations"]} == {120}
    version = double.deployment("f")["metadata"]["generation"]
    await second.update(F)
    assert double.deployment("f")["metadata"]["generation"] == version, "once is enough"


async def test_replicas_of_a_node_that_is_not_heard_of_are_borne_for_half_a_minute(
    double: Running, backends: Backends
) -> None:
    await (await backends()).create(F, 1)
    assert {one["tolerationSeconds"] for one in pod_spec(double)["tolerations"]} == {30}


async def test_the_reason_why_replicas_are_not_ready_is_told(double: Running, backends: Backends) -> None:
    backend = await backends()
    double.do(lambda: double.cluster.needs.update({"f": "400Mi"}))
    await backend.create(F, 2)
    await until_so(lambda: len(backend.get("f", DEFAULT_NAMESPACE).problems) == 2)
    problems = status_of(backend.get("f", DEFAULT_NAMESPACE), 0.0)["problems"]
    assert [problem.partition(": ")[2] for problem in problems] == ["CrashLoopBackOff", "OOMKilled: exit code 137"]
    double.do(lambda: double.cluster.nodes["node-1"].allocatable.update({"memory": "1Mi"}))
    await backend.create(replace(F, name="g"), 1)
    await until_so(lambda: bool(backend.get("g", DEFAULT_NAMESPACE).problems))
    assert "Unschedulable: 0/1 nodes are available" in backend.get("g", DEFAULT_NAMESPACE).problems[0]


@pytest.mark.parametrize(
    ("orchestration", "timeout_s", "begin"),
    [
        ("kubernetes", 0.0, "3 of 4 functions are not ready after 0 s: m-expert-0-0, m-expert-0-1, m-segment-0; "),
        ("process", 1e9, "3 of 4 functions cannot start: m-expert-0-0, m-expert-0-1, m-segment-0; "),
    ],
)
def test_a_deploy_that_fails_names_one_replica_of_each_kind_and_reason(
    orchestration: str, timeout_s: float, begin: str
) -> None:
    def status(name: str, nodes: str, *problems: str) -> dict[str, Any]:
        return {"name": name, "labels": {"smoe.nodes": nodes}, "problems": list(problems)}

    functions = [
        status("m-expert-0-0", "expert-0-0", "a: OOMKilled: exit code 137"),
        status("m-expert-0-1", "expert-0-1", "b: OOMKilled: exit code 137"),
        status("m-segment-0", "segment-0", "c: ErrImagePull: no such image"),
    ]
    there = {"name": "m", "availableReplicas": 1}
    client = GatewayClient("http://127.0.0.1:9")
    with (
        patch.object(GatewayClient, "functions", lambda _: [*functions, there]),
        patch.object(GatewayClient, "info", lambda _: {"provider": {"orchestration": orchestration}}),
        pytest.raises(NotReadyError) as error,
    ):
        client.wait_ready([one["name"] for one in (*functions, there)], timeout_s)
    assert str(error.value).startswith(f"{begin}a: OOMKilled: exit code 137; c: ErrImagePull: no such image")
