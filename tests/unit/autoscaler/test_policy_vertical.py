"""HPA over fixed vertical configurations, and configurations drawn from the valid space."""

from __future__ import annotations

from collections import Counter

import pytest

from autoscaler.contract import MIB, ConfigurationSpace, MemoryNeed
from autoscaler.errors import SettingsError
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.vertical import VerticalHpaPolicy, draw
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"
NEED = MemoryNeed(900 * MIB, 4096, 0.0)
"""1000 MiB at any number of replicas."""


def test_hpa_by_the_minute() -> None:
    """2.8 calls a replica. 11 are asked for in the 4th and 5th minute and hold the scale for 300 s; then 3, then 1."""
    policy = HpaPolicy(HpaSettings(cpu_target=0.0))
    memory: object = None
    replicas, seen = 1, []
    for minute, calls in enumerate([2.8, 5.6, 14.0, 30.8, 30.8, 8.4, 8.4, 2.8, 0.0, 0.0, 0.0, 0.0, 0.0]):
        row = {"configuration": configuration(replicas), "ready_replicas": replicas, "in_flight": calls}
        proposal = policy.propose(observation({NODE: row}), 60.0 * minute, memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        seen.append(replicas)
    assert seen == [1, 2, 5, 8, 8, 8, 8, 8, 8, 3, 3, 1, 1]


def test_the_other_axes_are_given_and_replicas_are_the_hpa_s() -> None:
    given = configuration(7, memory_mb=1024, cpu_cores=3.0, concurrency=2)
    seen = observation({NODE: {"in_flight": 5.6}})
    proposal = VerticalHpaPolicy("tuned-hpa", {FUNCTION: given}).propose(seen, NOW_S, None)
    plain = HpaPolicy().propose(seen, NOW_S, None)
    assert proposal.desired[FUNCTION] == given.with_replicas(2)
    assert {**proposal.desired, FUNCTION: None} == {**plain.desired, FUNCTION: None}
    assert proposal.reasons == plain.reasons and proposal.memory == plain.memory


def test_a_draw_is_in_the_space_satisfies_eq_2_and_depends_on_seed_and_name_alone() -> None:
    space = ConfigurationSpace()
    drawn = draw({f"f{i}": NEED for i in range(200)}, space, 3)
    assert all(found in space and NEED.holds(found) and found.replicas == 1 for found in drawn.values())
    assert draw({"f7": NEED}, space, 3)["f7"] == drawn["f7"]
    assert draw({"f7": NEED}, space, 4)["f7"] != drawn["f7"]


def test_draws_are_uniform_over_what_is_valid() -> None:
    """4000 draws over 16 resources and 10 concurrencies: each count within five standard deviations."""
    drawn = draw({f"f{i}": NEED for i in range(4000)}, ConfigurationSpace(), 0).values()
    for values, parts in (
        (Counter((found.cpu_cores, found.gpu_share) for found in drawn), 16),
        (Counter(found.concurrency for found in drawn), 10),
    ):
        mean = 4000 / parts
        assert len(values) == parts and all(abs(count - mean) < 5 * mean**0.5 for count in values.values())
    sizes = sorted(found.memory_mb for found in drawn)
    assert sizes[0] == 1024 and sizes[-1] == 10240 and abs(sizes[2000] - (1024 + 10240) / 2) < 300


def test_a_uniform_draw_is_one_for_all_that_holds_the_largest_need() -> None:
    large = MemoryNeed(9000 * MIB, 4096, 0.0)
    drawn = draw({"a": NEED, "b": large}, ConfigurationSpace(), 1, uniform=True)
    assert drawn["a"] == drawn["b"] and large.holds(drawn["a"])


def test_a_function_that_no_memory_holds_is_named() -> None:
    with pytest.raises(SettingsError, match="f1 needs 22222 MiB; the configuration space ends at 10240"):
        draw({"f1": MemoryNeed(20000 * MIB, 1, 0.0)}, ConfigurationSpace(), 0)


def test_a_function_at_zero_is_left_alone_with_all_its_axes() -> None:
    at_zero = {"configuration": configuration(0), "ready_replicas": 0}
    policy = VerticalHpaPolicy("tuned-hpa", {FUNCTION: configuration(2, memory_mb=1024)})
    assert policy.propose(observation({NODE: at_zero}), NOW_S, None).desired[FUNCTION] == configuration(0)
