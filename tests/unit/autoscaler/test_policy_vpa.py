"""VPA: the cases of the recommender's own tests, its comments' numbers, and when the updater acts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from autoscaler.contract import ConfigurationSpace, Memory
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.usage import Usage
from autoscaler.policy.vpa import DAY_S, VpaPolicy, VpaSettings, recommended
from tests.unit.autoscaler.builders import configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"
HOUR_S = 3600.0


def used(samples: Iterable[tuple[float, int, float]], half_life_s: float = HOUR_S) -> Usage:
    """After samples of (cores, weight, time)."""
    usage = Usage()
    for cores, weight, at_s in samples:
        usage = usage.with_sample(cores, 1.0, weight, at_s, half_life_s)
    return usage


def is_end_of(value: float, cores: float) -> bool:
    """Whether this is the end of the bucket of ``cores``, which is a twentieth wide, and 0.001 at first."""
    return cores < value < 1.05 * cores + 0.001


@pytest.mark.parametrize(
    ("apart_s", "expected"),
    [
        (0.0, {0.0: 1, 0.1: 1, 0.2: 2, 0.3: 2, 0.4: 3, 0.5: 3, 0.6: 3, 0.7: 4, 0.8: 4, 0.9: 4, 1.0: 4}),
        (HOUR_S, {0.0: 1, 0.02: 1, 0.03: 2, 0.10: 2, 0.11: 3, 0.34: 3, 0.35: 4, 1.0: 4}),
    ],
    ids=["TestPercentiles", "TestDecayingHistogramPercentiles"],
)
def test_quantiles_are_those_of_the_source_s_own_test(apart_s: float, expected: dict[float, int]) -> None:
    usage = used((float(one), one, one * apart_s) for one in (1, 2, 3, 4))
    for share, cores in expected.items():
        assert is_end_of(usage.quantile(share), cores), share


def test_old_samples_decay_as_in_the_source_s_own_tests() -> None:
    simple = used([(2.0, 1000, 0.0), (1.0, 1, 20 * HOUR_S)])
    assert is_end_of(simple.quantile(0.999), 1) and is_end_of(simple.quantile(1.0), 2)
    assert is_end_of(used([(2.0, 1, 0.0), (1.0, 1, 101 * HOUR_S)]).quantile(1.0), 1)
    assert Usage().quantile(0.5) == 0.0


def test_samples_weigh_what_was_asked_for() -> None:
    """Two of three samples are from before a growth from 1 to 4 cores: 2 of 6 of the weight."""
    usage = Usage()
    for number, (cores, limit) in enumerate([(1.0, 1.0), (1.0, 1.0), (3.0, 4.0)]):
        usage = usage.with_sample(cores, limit, 1, float(number), DAY_S)
    assert is_end_of(usage.quantile(0.32), 1) and is_end_of(usage.quantile(0.34), 3)


def test_confidence_is_that_of_the_source_s_own_test() -> None:
    """Nine samples two minutes apart count as nine minutes."""
    usage = used((1.0, 1, 120.0 * number) for number in range(9))
    assert usage.confidence(DAY_S) == pytest.approx(0.00625) and usage.confidence(18 * 60.0) == 0.5


@pytest.mark.parametrize(
    ("history_s", "lower", "upper"),
    [
        pytest.param(300.0, 0.6, 289.0, id="5m"),
        pytest.param(1800.0, 0.9, 49.0, id="30m"),
        pytest.param(HOUR_S, 0.95, 25.0, id="60m"),
        pytest.param(12 * HOUR_S, 1.0, 3.0, id="12h"),
        pytest.param(24 * HOUR_S, 1.0, 2.0, id="24h"),
        pytest.param(7 * DAY_S, 1.0, 1.14, id="1 week"),
    ],
)
def test_bounds_are_as_wide_as_the_source_s_comments_have_them(history_s: float, lower: float, upper: float) -> None:
    usage = used([(1.0, 20_000, 0.0), (1.0, 1, history_s)], half_life_s=DAY_S)
    asked = recommended(usage, VpaSettings())
    assert is_end_of(asked.target / 1.15, 1)
    assert (asked.lower / asked.target, asked.upper / asked.target) == pytest.approx((lower, upper), rel=0.02)


def test_no_replica_is_asked_to_have_less_than_the_recommender_s_least() -> None:
    assert recommended(used([(0.0, 1, 0.0)]), VpaSettings()).target == 0.025


def sizes(cores: float, use: float, minutes: int, space: tuple[float, ...] = (1, 2, 3, 4, 5, 6)) -> list[float]:
    """Size after each minute where a replica uses ``use`` cores, or all that it has."""
    policy = VpaPolicy(space=ConfigurationSpace(cpu_cores=space))
    memory: Memory = None
    course: list[float] = []
    for minute in range(minutes):
        share = min(1.0, use / cores)
        node = {"configuration": configuration(cpu_cores=cores), "cpu_utilisation": share}
        proposal = policy.propose(observation({NODE: node}), 60.0 * minute, memory)
        memory, cores = proposal.memory, proposal.desired[FUNCTION].cpu_cores
        course.append(cores)
    return course


def test_a_starved_replica_grows_once_its_size_is_below_the_lower_bound() -> None:
    """Use of 1 core is in a bucket that ends at 1.0208. 1.15 of it, times (1 + 0.001 / days)^-2, is above 1 after 17.3
    minutes; the target of 1.17 is within 2 cores."""
    assert sizes(1.0, 1.0, 25) == [1.0] * 18 + [2.0] * 7
    assert sizes(1.0, 1.0, 25, space=(1, 4))[-1] == 4.0 and sizes(1.0, 1.0, 25, space=(1,))[-1] == 1.0


def test_an_idle_replica_shrinks_once_its_size_is_above_the_upper_bound() -> None:
    """1.15 of 0.5057, times 1 + 1 / days, is below 6 after 154.5 minutes; no size is below the least."""
    assert sizes(6.0, 0.5, 170) == [6.0] * 155 + [1.0] * 15


@pytest.mark.slow
def test_within_the_bounds_a_size_changes_after_half_a_day_and_by_a_tenth() -> None:
    assert sizes(3.0, 1.0, 722)[-3:] == [3.0, 2.0, 2.0]
    assert sizes(3.0, 2.55, 722)[-1] == 3.0


def test_with_hpa_the_replicas_are_hpa_s_and_the_cores_vpa_s() -> None:
    hpa = HpaSettings(cpu_target=0.0)
    policy = VpaPolicy(VpaSettings(with_hpa=True, confidence_s=1.0), hpa=hpa)
    memory: Memory = None
    window = observation({NODE: {"cpu_utilisation": 1.0, "in_flight": 8.0, "concurrency_utilisation": 1.0}})
    for at_s in (0.0, 60.0):
        proposal = policy.propose(window, at_s, memory)
        memory = proposal.memory
    alone = HpaPolicy(hpa).propose(window, 0.0, None).desired[FUNCTION].replicas
    assert alone > 1 and proposal.desired[FUNCTION] == configuration(alone, cpu_cores=2.0)
    assert VpaPolicy().propose(window, 0.0, None).desired[FUNCTION].replicas == 1


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"cpu_utilisation": None}, "no data"),
        ({"configuration": None}, "no data"),
        ({"measured_replicas": 0}, "no data"),
        ({"configuration": configuration(cpu_cores=0.0, gpu_share=0.5)}, "no cores"),
    ],
)
def test_without_cores_or_data_it_desires_nothing(node: dict[str, Any], reason: str) -> None:
    proposal = VpaPolicy().propose(observation({NODE: node}), 0.0, None)
    assert FUNCTION not in proposal.desired and proposal.reasons[FUNCTION].startswith(reason)
