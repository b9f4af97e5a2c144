"""What a token costs: replica-seconds by CPU time over tokens of the pipeline, the latest windows first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.capacity import total_needs
from autoscaler.contract import Capacity, Configuration, Observation, Resources
from autoscaler.policy.work import FORGET, STEP, Work
from evaluation.bound.last_window import Plan
from platform_words.bursts import MAX_STANDBYS
from rl.staffing.env import StaffingEnv
from rl.staffing.hours import encoder_of
from rl.staffing.policy import REACH, StaffingRule, proposal
from tests.unit.autoscaler import builders
from tests.unit.rl.staffing.test_env import VALUES, episodes

EXPERT = "m-expert-0-0"


def window(used: float | None, replicas: int | None = 2, tokens_per_s: float | None = 30.0, **more: Any) -> Observation:
    changes = {"expert-0-0": {"cpu_utilisation": used, "measured_replicas": replicas}}
    return replace(builders.observation(changes), start_s=0.0, end_s=2.0, tokens_per_s=tokens_per_s, **more)


def test_two_replicas_at_a_third_of_their_limit_are_two_thirds_of_a_replica() -> None:
    assert Work().after(window(1 / 3)).token_s[EXPERT] == pytest.approx(2 / 3 / 30, rel=5e-3)


def test_windows_are_summed_the_older_the_lighter() -> None:
    work = Work().after(window(0.1)).after(window(0.5, tokens_per_s=90.0))
    used_s, tokens = work.sums[EXPERT]
    assert used_s == pytest.approx(FORGET * 0.4 + 2.0) and tokens == pytest.approx(FORGET * 60 + 180)


@pytest.mark.parametrize(
    "nothing", [window(None), window(0.5, None), window(0.5, tokens_per_s=None), window(0.5, tokens_per_s=0.0),
                window(0.5, stale=True)],
)  # fmt: skip
def test_a_window_that_says_nothing_of_a_function_changes_nothing_of_it(nothing: Observation) -> None:
    before = Work().after(window(0.2))
    assert before.after(nothing).sums[EXPERT] == before.sums[EXPERT]
    assert EXPERT not in Work().after(nothing).token_s


def test_under_another_limit_a_token_costs_other_seconds_of_a_replica() -> None:
    """The same core-seconds a token: with six cores a sixth of a replica's second, whatever the limit was before."""
    wide = window(1 / 3 / 6)
    nodes = (one._replace(configuration=replace(one.configuration, cpu_cores=6.0)) for one in wide.nodes)
    work = Work().after(window(1 / 3)).after(replace(wide, nodes=tuple(nodes)))
    assert work.token_s[EXPERT] == pytest.approx(2 / 3 / 30 / 6, rel=5e-3)


def test_a_cost_that_hardly_changed_is_stated_as_before() -> None:
    first = Work().after(window(1 / 3))
    assert first.after(window(0.45)).token_s == first.token_s
    much = first.after(window(0.9))
    assert much.token_s[EXPERT] > STEP * first.token_s[EXPERT]
    assert much.after(window(0.3)).token_s == much.token_s


@pytest.mark.parametrize("measured", [True, False])
def test_the_rule_states_it_where_calls_are_of_functions_that_run(measured: bool) -> None:
    """In the simulation CPU time over its limit is the time that calls take, so both ways agree."""
    env = StaffingEnv(episodes())
    env.reset()
    episode = env.episode
    rule = StaffingRule(replace(episode.workload, measured=measured), episode.encoder, VALUES)
    answer = rule.propose(episode.observation, episode.observation.end_s, None)
    stated = {name: one.burst.token_s for name, one in answer.desired.items() if one.burst is not None}
    assert len(stated) == len(episode.workload.experts)
    if not measured:
        assert set(stated.values()) == {None}
        return
    tokens = episode.observation.tokens_per_s * episode.observation.window_s
    for node in episode.observation.nodes:
        if node.function in stated and stated[node.function] is not None:
            assert stated[node.function] == pytest.approx(node.busy_replica_s / tokens, rel=0.5)
    assert sum(cost is not None for cost in stated.values()) > len(stated) / 2


@pytest.mark.parametrize("standbys", [0, 2])
def test_segments_of_functions_that_run_get_standbys_or_are_left_to_another_policy(standbys: int) -> None:
    env = StaffingEnv(episodes())
    env.reset()
    episode = env.episode
    cores = replace(episode.observation.nodes[1].configuration, gpu_share=0.0, cpu_cores=6.0)
    changed = {"configuration": cores, "cpu_utilisation": 0.01, "measured_replicas": 2}
    nodes = (one._replace(**changed) if one.kind == "segment" else one for one in episode.observation.nodes)
    observation = replace(episode.observation, nodes=tuple(nodes))
    for measured in (True, False):
        workload = replace(episode.workload, measured=measured)
        rule = StaffingRule(workload, episode.encoder, VALUES, standbys)
        desired = rule.propose(observation, observation.end_s, None).desired
        segments = {node.function for node in workload.segments} & desired.keys()
        assert bool(segments) == (measured and standbys > 0)
        assert {(desired[name].replicas, desired[name].standbys) for name in segments} <= {(1, standbys)}
        asleep = StaffingRule(workload, episode.encoder, {**VALUES, "sleep_s": 0.5}, standbys)
        sleeping = asleep.propose(observation, observation.end_s, None).desired
        assert all((sleeping[name].running, desired[name].running) == (0, 1) for name in segments)
        busy = (one._replace(cpu_utilisation=0.9, measured_replicas=5) for one in observation.nodes)
        loaded = rule.propose(replace(observation, nodes=tuple(busy)), observation.end_s, None).desired
        assert all(loaded[name].replicas >= 2 for name in segments), "they are no three at most"


@pytest.mark.parametrize(
    ("missing", "more", "replicas"),
    [
        pytest.param({"cpu_utilisation": None}, {}, 5, id="CPU time"),
        pytest.param({}, {"tokens_per_s": None}, 5, id="tokens"),
        pytest.param({}, {"requests": 0.0, "tokens_per_s": 0.0, "in_flight": 40.0}, 5, id="none answered"),
        pytest.param({}, {"requests": 30.0, "tokens_per_s": 0.0, "in_flight": 0.0}, 5, id="all refused"),
        pytest.param(
            {"cpu_utilisation": None}, {"requests": 0.0, "tokens_per_s": 0.0, "in_flight": 0.0}, 1, id="nothing came"
        ),
    ],
)
def test_without_a_plan_as_many_stay_as_there_are_where_the_work_is_not_known(
    missing: dict[str, Any], more: dict[str, Any], replicas: int
) -> None:
    """What is not known is no work of none: five busy replicas were cut to one."""
    env = StaffingEnv(episodes())
    env.reset()
    workload, view = replace(env.episode.workload, measured=True), env.episode.observation
    there = {"configuration": Configuration(777, 3.0, 0.0, 5, 2), "cpu_utilisation": 0.02, "measured_replicas": 5}
    nodes = tuple(one if one.kind == "ingress" else one._replace(**{**there, **missing}) for one in view.nodes)
    rule = StaffingRule(workload, encoder_of(workload), VALUES, 2, planned=False)
    held = rule.propose(replace(view, nodes=nodes, **more), view.end_s, None)
    assert {one.replicas for one in held.desired.values()} == {replicas}
    assert any("not known" in reason for reason in held.reasons.values()) == (replicas == 5)
    whole = rule.propose(replace(view, nodes=tuple(one._replace(cpu_utilisation=0.02) for one in nodes)), 0.0, None)
    assert {one.replicas for one in whole.desired.values()} == {1}


def test_a_plan_that_nothing_serves_is_not_called_a_lack_of_data() -> None:
    env = StaffingEnv(episodes())
    reason = "no configuration serves the last window's load"
    experts = tuple(node.function for node in env.episode.workload.experts)
    held = proposal(Plan(experts, {}, reason), env.episode.workload, np.zeros((len(experts), 8), np.float32), None)
    assert held.reasons == dict.fromkeys(experts, reason) and not held.desired


def staffed(
    busy: float, values: dict[str, float], capacity: Capacity | None = None
) -> tuple[list[Configuration], Resources]:
    """Experts on cores whose work keeps ``busy`` replicas of each busy, as the rule configures them; what all other
    functions take."""
    env = StaffingEnv(episodes())
    env.reset()
    episode = env.episode
    used = {"cpu_utilisation": busy / 50, "measured_replicas": 50}
    nodes = tuple(one._replace(**used) for one in episode.observation.nodes)
    observation = replace(episode.observation, nodes=nodes)
    workload = replace(episode.workload, measured=True, capacity=capacity)
    experts = {node.function for node in workload.experts}
    rule = StaffingRule(workload, encoder_of(workload), values)
    desired = rule.propose(observation, observation.end_s, None).desired
    others = total_needs(node.configuration for node in nodes if node.kind != "expert")
    return [one for name, one in desired.items() if name in experts and not one.gpu_share], others


@pytest.mark.parametrize("busy", [0.2, 4.5, 40.0])
def test_experts_that_run_are_staffed_for_the_work_that_their_cpu_time_states(busy: float) -> None:
    """However short the planner takes calls to be, under a quota that makes streams of them wait."""
    on_cores, _ = staffed(busy, VALUES)
    assert on_cores
    for one in on_cores:
        assert one.replicas >= VALUES["load"] * busy * 0.99  # a cost is stated to three digits
        assert one.standbys <= MAX_STANDBYS
        assert one.replicas + one.standbys >= min(REACH * busy * 0.99, one.replicas + MAX_STANDBYS)


@pytest.mark.parametrize("sleep_s", [5.0, 60.0])
def test_experts_that_are_to_have_no_standbys_get_none_however_much_work_there_is(sleep_s: float) -> None:
    """With a rule of their own for sleep, too, which is where there is one without standbys."""
    on_cores, _ = staffed(4.5, VALUES | {"standbys": 0.0, "sleep_s": sleep_s})
    pods = {one.running + one.standbys - one.replicas for one in on_cores}  # ordered replicas that sleep wait, too
    assert pods == {0}
    assert {one.burst is None for one in on_cores} == {sleep_s == 60.0}


@pytest.mark.slow
def test_what_the_work_asks_for_stays_within_the_cluster() -> None:
    """Replicas that always run come first, standbys have what is left; in a full cluster nothing is added."""
    free, _ = staffed(4.5, VALUES)
    planned, segments = staffed(0.0, VALUES | {"standbys": 0.0})
    running, deep = total_needs(replace(one, burst=None) for one in free), total_needs(free)
    least = total_needs(planned)
    assert least.cores < running.cores < deep.cores
    for cores in (least.cores, (least.cores + running.cores) / 2, (running.cores + deep.cores) / 2, deep.cores):
        walled, _ = staffed(4.5, VALUES, Capacity(segments.cores + cores, 1e9, 1000))
        counts = [one.replicas for one in walled], [one.standbys for one in walled]
        taken = total_needs(walled)
        assert taken.cores <= cores * (1 + 1e-6)
        if cores == least.cores:
            assert counts == ([one.replicas for one in planned], [0] * len(planned))
        elif cores < running.cores:
            assert sum(counts[0]) > sum(one.replicas for one in planned) and sum(counts[1]) == 0
        elif cores < deep.cores:
            assert counts[0] == [one.replicas for one in free]
            assert 0 < sum(counts[1]) < sum(one.standbys for one in free)
        else:
            assert walled == free


@pytest.mark.parametrize("busy", [0.2, 3.4])
def test_without_a_plan_replicas_keep_their_size_and_go_by_cpu_time(busy: float) -> None:
    """A GPU share stays as it is: its time is not the CPU's."""
    env = StaffingEnv(episodes())
    env.reset()
    workload, view = replace(env.episode.workload, measured=True), env.episode.observation
    sizes = [Configuration(777, 3.0, 0.0, 5, 2), Configuration(512, 0.0, 0.3, 4, 2)]
    experts = [one.node for one in view.nodes if one.kind == "expert"]
    nodes = tuple(
        one._replace(configuration=sizes[one.node == experts[0]], cpu_utilisation=busy / 50, measured_replicas=50)
        if one.node in experts
        else one
        for one in view.nodes
    )
    rule = StaffingRule(workload, encoder_of(workload), VALUES, planned=False)
    desired = rule.propose(replace(view, nodes=nodes), view.end_s, None).desired
    orders = [desired[one.function] for one in workload.experts]
    assert orders[0].gpu_share == 0.3 and orders[0].replicas == 4
    assert {(one.memory_mb, one.cpu_cores, one.concurrency) for one in orders[1:]} == {(777, 3.0, 2)}
    running = int(np.ceil(VALUES["load"] * busy))
    assert {one.replicas for one in orders[1:]} == {max(1, running)}
    unknown = (one._replace(tokens_per_s=None, requests_per_s=None) if one.node == experts[3] else one for one in nodes)
    assert not rule.propose(replace(view, nodes=tuple(unknown)), view.end_s, None).desired
