"""From six numbers of every expert to configurations and standbys within the cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.capacity import total_needs
from autoscaler.contract import Burst, Configuration, Resources
from autoscaler.errors import SettingsError
from rl.staffing.action import AXES, NAMES, Depth, Staffing, action_of, granted, two_at_a_time
from rl.staffing.policy import RuleSettings
from rl.staffing.risk import RiskSettings, risk
from tests.unit.rl.staffing.test_env import VALUES, episodes

ONE = Configuration(128, 2.0, 0.0, 1, 4)


@pytest.mark.parametrize("axis", AXES, ids=NAMES)
def test_an_axis_ends_at_its_bounds_and_comes_back(axis) -> None:
    assert axis.value(np.array([-1.0, 1.0])).tolist() == pytest.approx([axis.low, axis.high])
    middle = float(axis.value(np.array(0.3)))
    assert axis.low < middle < axis.high and axis.action(middle) == pytest.approx(0.3)


def test_values_beyond_an_axis_are_taken_to_its_end() -> None:
    values = {
        "load": 99.0,
        "standbys": -1.0,
        "headroom": 1.0,
        "spare": 0.8,
        "hold_s": 99.0,
        "look_back_s": 0.25,
        "budget": 1e-3,
        "sleep_s": 0.1,
    }
    assert action_of(values)[[0, 1, 4, 6]].tolist() == [1.0, -1.0, 1.0, -1.0]


def test_standbys_go_to_the_expert_with_the_larger_priority_first() -> None:
    wanted, room = np.array([4, 4]), Resources(cores=10.0, memory_mb=1e6)
    # two replicas take 4 of 10 cores, so three standbys fit; at 3 to 1 all three come before the second's first
    assert granted(wanted, [ONE, ONE], np.array([3.0, 1.0]), room).tolist() == [3, 0]
    assert granted(wanted, [ONE, ONE], np.array([1.0, 1.0]), room).tolist() == [2, 1]


def test_on_cores_a_replica_takes_two_calls_and_with_a_gpu_what_was_planned() -> None:
    on_gpu = Configuration(128, 0.0, 0.3, 1, 4)
    assert [two_at_a_time(ONE).concurrency, two_at_a_time(ONE, 3).concurrency] == [2, 3]
    assert two_at_a_time(on_gpu) == on_gpu


def test_a_decoders_replicas_take_as_many_calls_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their workers compute calls of several instances as one product."""
    monkeypatch.setattr("rl.staffing.action.CALLS", 1)
    episode = next(episodes(300.0))
    made, values = episode.workload, np.tile(action_of(VALUES), (len(episode.workload.experts), 1))
    calls = []
    for generates in (False, True):
        workload = replace(made, topology=replace(made.topology, generates=generates))
        desired = Staffing(workload).plan(episode.observation, values, np.ones(len(values)), None).desired
        calls.append({one.concurrency for one in desired.values() if not one.gpu_share})
    assert calls == [{1}, {2}]


@pytest.mark.parametrize("standbys", [0, 4])
def test_as_many_run_as_the_work_by_cpu_time_asks_for_with_and_without_standbys(standbys: int) -> None:
    episode = next(episodes(300.0))
    count = len(episode.workload.experts)
    values = np.tile(action_of({**VALUES, "standbys": standbys, "sleep_s": 60.0}), (count, 1))
    staffing = Staffing(replace(episode.workload, measured=True), planned=False)
    depth = Depth(np.full(count, 3), np.full(count, 6))
    desired = staffing.plan(episode.observation, values, np.ones(count), None, depth).desired
    assert {one.replicas for one in desired.values()} == {3}
    assert {one.standbys for one in desired.values()} == {standbys}


def test_replicas_whose_calls_were_measured_take_as_many_as_deployed() -> None:
    """What calls of one product save shows in no call that was measured alone."""
    episode = next(episodes(300.0))
    values = np.tile(action_of(VALUES), (len(episode.workload.experts), 1))
    nodes = tuple(
        node if node.configuration is None else node._replace(configuration=replace(node.configuration, concurrency=7))
        for node in episode.observation.nodes
    )
    staffing = Staffing(replace(episode.workload, measured=True))
    desired = staffing.plan(replace(episode.observation, nodes=nodes), values, np.ones(len(values)), None).desired
    assert {one.concurrency for one in desired.values()} == {7}


def test_the_rule_looks_back_and_holds_longer_where_calls_are_measured_unless_it_is_told() -> None:
    names = ("standbys", "spare", "hold_s", "look_back_s")
    values = [[RuleSettings().values(measured)[name] for name in names] for measured in (False, True)]
    assert values == [[6, 0.1, 1.5, 0.25], [3, 0.7, 3, 0.5]]
    assert RuleSettings(spare=0.3).values(measured=True)["spare"] == 0.3


@pytest.mark.parametrize(("key", "value"), [("spare", 1.7), ("activation_headroom", 0.3), ("hold_s", 9.0)])
def test_a_number_beyond_its_axis_is_refused_with_what_is_allowed(key: str, value: float) -> None:
    axis = next(axis for axis in AXES if key.endswith(axis.name))
    with pytest.raises(SettingsError, match=f"staffing: {key} is {value}; allowed is {axis.low:g} to {axis.high:g}"):
        RuleSettings(**{key: value})


def test_without_walls_all_are_granted() -> None:
    assert granted(np.array([5, 0]), [ONE, ONE], np.ones(2), None).tolist() == [5, 0]


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(1, 3), st.floats(0, 5)), min_size=1, max_size=6
    ),
    st.floats(0, 60),
)
def test_what_is_granted_fits_and_nothing_more_of_one_size_would(rows, spare: float) -> None:
    configurations = [Configuration(128, float(cores), 0.0, replicas, 1) for _, cores, replicas, _ in rows]
    least = total_needs(configurations)
    room = Resources(least.cores + spare, least.memory_mb + 1e6, 0.0)
    wanted, priority = np.array([row[0] for row in rows]), np.array([row[3] for row in rows])
    counts = granted(wanted, configurations, priority, room)
    assert ((counts >= 0) & (counts <= wanted)).all()
    ordered = [
        Configuration(128, one.cpu_cores, 0.0, one.replicas, 1, Burst(int(count)))
        for one, count in zip(configurations, counts, strict=True)
    ]
    left = room.cores - total_needs(ordered).cores
    assert left >= -1e-6
    assert all(
        one.cpu_cores > left - 1e-6
        for one, count, most in zip(configurations, counts, wanted, strict=True)
        if count < most
    )


def test_risk_rises_steeply_around_the_slo_and_ends() -> None:
    settings = RiskSettings(weight=6.0)
    assert [risk(part, settings) for part in (None, 0.5, 0.85)] == [0.0, 0.0, 0.0]
    assert risk(1.0, settings) == pytest.approx(3.0) and risk(1.15, settings) == pytest.approx(6.0)
    assert risk(2.0, settings) == pytest.approx(7.7) and risk(50.0, settings) == risk(500.0, settings)
