"""APA: the cases of AIBrix's own test, and its cool-down."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.policy.apa import ApaPolicy, ApaSettings, target_replicas
from tests.unit.autoscaler.builders import configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"


@pytest.mark.parametrize(
    ("present", "usage", "rates", "replicas"),
    [
        pytest.param(2, 45, (2, 2), 3, id="basic_scale_up"),
        pytest.param(2, 35, (2, 2), 3, id="scale_up_upto_ceiling"),
        pytest.param(2, 90, (2, 2), 4, id="scale_up_upto_max_scale_up"),
        pytest.param(2, 90, (2.5, 2), 5, id="scale_up_upto_max_scale_up_ceiling"),
        pytest.param(6, 20, (2, 2), 4, id="basic_scale_down"),
        pytest.param(6, 18, (2, 2), 4, id="scale_down_upto_ceiling"),
        pytest.param(6, 10, (2, 2), 3, id="scale_down_upto_max_scale_down"),
        pytest.param(6, 5, (2, 2.5), 2, id="scale_down_upto_max_scale_down_floor"),
        pytest.param(2, 33, (2, 2), 2, id="within the tolerance above"),
        pytest.param(2, 27, (2, 2), 2, id="within the tolerance below"),
    ],
)
def test_the_decisions_are_those_of_the_source_s_own_test(
    present: int, usage: float, rates: tuple[float, float], replicas: int
) -> None:
    settings = ApaSettings(max_scale_up_rate=float(rates[0]), max_scale_down_rate=float(rates[1]))
    assert target_replicas(present, usage / 30, settings) == replicas


def replicas_over_time(settings: ApaSettings, windows: list[dict[str, Any]], every_s: float = 60.0) -> list[int]:
    policy, memory, replicas = ApaPolicy(settings), None, 1
    counts = []
    for number, fields in enumerate(windows):
        node = {"configuration": configuration(replicas), "ready_replicas": replicas, **fields}
        proposal = policy.propose(observation({NODE: node}), every_s * number, memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        counts.append(replicas)
    return counts


def test_it_doubles_at_most_and_scales_down_after_the_cooldown() -> None:
    """Slots: 4 a replica, target 70 %. 20 calls ask for 8 replicas; then none do: a step down asks for half of them.

    Each step down waits five minutes for the last recommendation of more."""
    busy, idle = {"in_flight": 20.0}, {"in_flight": 0.0}
    assert replicas_over_time(ApaSettings(), [busy] * 4 + [idle] * 7) == [2, 4, 8, 8, 8, 8, 8, 8, 4, 4, 4]


def test_cpu_is_the_other_metric() -> None:
    assert replicas_over_time(ApaSettings(metric="cpu", target=0.5), [{"cpu_utilisation": 0.9}]) == [2]


def test_without_data_it_desires_nothing() -> None:
    for node in ({"in_flight": None}, {"configuration": None}):
        proposal = ApaPolicy().propose(observation({NODE: node}), 0.0, None)
        assert FUNCTION not in proposal.desired and proposal.reasons[FUNCTION].startswith("no data")
