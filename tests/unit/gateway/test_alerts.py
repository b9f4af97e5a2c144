"""Alertmanager's webhook: OpenFaaS's own scaling, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts import wanted_replicas
from gateway.contract import FunctionSpec, FunctionState
from tests.unit.gateway.gateways import Running, Starter

MIN, MAX, FACTOR = (f"com.openfaas.scale.{name}" for name in ("min", "max", "factor"))


def state(replicas: int, **labels: int) -> FunctionState:
    spec = FunctionSpec("f", "i", labels={f"com.openfaas.scale.{name}": str(value) for name, value in labels.items()})
    return FunctionState(spec, replicas, (), 0, 0.0)


def alert(*names: str, status: str = "firing") -> dict[str, Any]:
    return {"alerts": [{"status": status, "labels": {"function_name": name}} for name in names]}


@pytest.mark.parametrize(
    ("before", "firing", "resolved"),
    [
        pytest.param(state(1), 5, 1, id="a fifth of 20 is 4"),
        pytest.param(state(19), 20, 1, id="no more than the maximum"),
        pytest.param(state(1, max=2), 2, 1, id="a fifth of 2 is rounded up to 1"),
        pytest.param(state(3, min=2, max=10, factor=50), 8, 2, id="half of 10 is 5"),
        pytest.param(state(2, min=2, max=2), 2, 2, id="equal bounds switch it off"),
        pytest.param(state(3, factor=0), 3, 3, id="a factor of 0 switches it off"),
        pytest.param(state(0), 0, 0, id="only a call wakes a function at zero"),
        pytest.param(state(7, max=5), 7, 1, id="firing never takes replicas away"),
        pytest.param(state(30, min=25), 30, 30, id="a minimum above the default maximum leaves no room"),
    ],
)
def test_the_number_after_an_alert(before: FunctionState, firing: int, resolved: int) -> None:
    assert wanted_replicas(before, firing=True) == firing
    assert wanted_replicas(before, firing=False) == resolved


@given(low=st.integers(0, 30), room=st.integers(0, 30), factor=st.integers(0, 100), replicas=st.integers(1, 60))
def test_repeated_alerts_reach_the_maximum_or_change_nothing(low: int, room: int, factor: int, replicas: int) -> None:
    high = low + room
    before = state(min(max(replicas, low), max(high, 1)), min=low, max=high, factor=factor)
    now = before
    for _ in range(101):
        now = FunctionState(now.spec, wanted_replicas(now, firing=True), (), 0, 0.0)
    switched_off = room == 0 or factor == 0 or before.desired_replicas == 0
    assert now.desired_replicas == (before.desired_replicas if switched_off else high)


async def test_alerts_scale_functions_up_and_back(running: Running) -> None:
    await running.deploy("f", labels={MAX: "4", FACTOR: "50"})
    assert (await running.system("POST", "/system/alert", alert("f.openfaas-fn"))).status == 200
    assert len(running.replicas()) == 3
    assert (await running.system("POST", "/system/alert", alert("f", status="resolved"))).status == 200
    assert len(running.replicas()) == 1


async def test_functions_that_are_gone_are_named_and_hold_up_no_other(running: Running) -> None:
    await running.deploy("f", labels={MAX: "2"})
    answer = await running.system("POST", "/system/alert", alert("gone.openfaas-fn", "f.openfaas-fn"))
    assert (answer.status, answer.text) == (404, "there is no function gone in namespace openfaas-fn")
    assert len(running.replicas()) == 2


async def test_replicas_after_an_alert_survive_the_gateway(start: Starter) -> None:
    deployment = {"service": "f", "image": "i", "labels": {MAX: "2"}}
    async with start() as running:
        await running.system("POST", "/system/functions", deployment)
        await running.system("POST", "/system/alert", alert("f.openfaas-fn"))
    async with start() as running:
        assert len(running.replicas()) == 2


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "the body must be a JSON object with a list of alerts"),
        ({"alerts": {}}, "list of alerts"),
        ({"alerts": [7]}, "alerts[0].status must be firing or resolved"),
        (alert("f", status="maybe"), "alerts[0].status must be firing or resolved"),
        ({"alerts": [{"status": "firing"}]}, "alerts[0].labels.function_name must be the name of a function"),
        (alert("f", ""), "alerts[1].labels.function_name"),
    ],
)
async def test_what_is_no_alert_is_400_with_a_sentence(running: Running, document: Any, sentence: str) -> None:
    await running.deploy("f")
    answer = await running.system("POST", "/system/alert", document)
    assert answer.status == 400
    assert sentence in answer.text
    assert len(running.replicas()) == 1
