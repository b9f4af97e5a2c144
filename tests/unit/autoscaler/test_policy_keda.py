"""KEDA: thresholds through the generated HPA, and activation from and to zero."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.errors import SettingsError
from autoscaler.policy.keda import KedaPolicy, KedaSettings, Trigger
from tests.unit.autoscaler.builders import configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"


def fields(replicas: int, **more: Any) -> dict[str, Any]:
    return {"configuration": configuration(replicas), "ready_replicas": replicas, **more}


def replicas_of(policy: KedaPolicy, now_s: float = 0.0, **node: Any) -> int:
    return policy.propose(observation({NODE: node}), now_s, None).desired[FUNCTION].replicas


@pytest.mark.parametrize(
    ("triggers", "node", "replicas"),
    [
        pytest.param((Trigger(),), {"in_flight": 5.0, "waiting": 1.0}, 3, id="6 calls over 0.7 of 4 slots"),
        pytest.param((Trigger(threshold=2.0),), {"in_flight": 5.0}, 3, id="a threshold of its own"),
        pytest.param((Trigger("rps", 10.0),), {"requests_per_s": 31.0}, 4, id="calls per second"),
        pytest.param((Trigger("rps", 10.0),), {"requests_per_s": 10.9}, 1, id="inside the tolerance of a tenth"),
        pytest.param((Trigger(), Trigger("rps", 10.0)), {"in_flight": 3.0, "requests_per_s": 30.0}, 3, id="largest"),
        pytest.param((Trigger(threshold=1.0),), {"in_flight": 40.0}, 5, id="the HPA's rate: four more at once"),
    ],
)
def test_from_one_up_it_is_an_hpa_with_average_values(
    triggers: tuple[Trigger, ...], node: dict[str, Any], replicas: int
) -> None:
    assert replicas_of(KedaPolicy(KedaSettings(triggers)), **fields(1, **node)) == replicas


def test_a_story_by_the_minute_with_the_hpa_s_scale_down_window() -> None:
    """Threshold 2: 3, 9 (8 at most), 9; then 2 for five minutes until the last 9 is older than 300 s."""
    policy = KedaPolicy(KedaSettings((Trigger(threshold=2.0),)))
    memory: object = None
    replicas, seen = 1, []
    for minute, calls in enumerate([6.0, 18.0, 18.0, 4.0, 4.0, 4.0, 4.0, 4.0]):
        proposal = policy.propose(observation({NODE: fields(replicas, in_flight=calls)}), 60.0 * minute, memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        seen.append(replicas)
    assert seen == [3, 7, 8, 8, 8, 8, 8, 2]


def test_to_zero_after_the_cooldown_and_back_at_the_next_poll() -> None:
    """Calls until 40 s, polled at 0, 30, 60 …: last active at 30, so zero after 330. Calls at 400: next poll at 420."""
    policy = KedaPolicy(KedaSettings(min_replicas=0))
    memory: object = None
    replicas, seen = 1, {}
    for now_s in range(0, 450, 10):
        waiting = 1.0 if now_s <= 40 or now_s >= 400 else 0.0
        proposal = policy.propose(observation({NODE: fields(replicas, waiting=waiting)}), float(now_s), memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        seen[now_s] = replicas
    assert [seen[t] for t in (0, 330, 340, 400, 410, 420, 440)] == [1, 1, 0, 0, 0, 1, 1]


def test_activation_is_strict() -> None:
    settings = KedaSettings((Trigger(threshold=5.0, activation=2.0),), min_replicas=0)
    assert replicas_of(KedaPolicy(settings), **fields(0, waiting=2.0)) == 0
    assert replicas_of(KedaPolicy(settings), **fields(0, waiting=2.1)) == 1


def test_without_data_it_desires_nothing() -> None:
    for node in ({"in_flight": None}, {"configuration": None}):
        proposal = KedaPolicy().propose(observation({NODE: node}), 0.0, None)
        assert FUNCTION not in proposal.desired and proposal.reasons[FUNCTION].startswith("no data")


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Trigger("rps"), "threshold"),
        (lambda: Trigger(threshold=0.0), "threshold"),
        (lambda: Trigger("cpu"), "metric"),  # type: ignore[arg-type]
        (lambda: KedaSettings(()), "triggers"),
        (lambda: KedaSettings(polling_interval_s=0.0), "polling_interval_s"),
        (lambda: KedaSettings(min_replicas=9), "min_replicas"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make: Any, key: str) -> None:
    with pytest.raises(SettingsError, match=f"^keda: {key} is "):
        make()
