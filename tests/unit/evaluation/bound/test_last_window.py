"""The policy last-window optimum: what it wishes, against the optimum computed from the very requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import ConfigurationSpace, NodeInfo, NodeObservation, Observation
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology
from evaluation.bound.bounds import deterministic
from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings
from evaluation.bound.loads import windows
from evaluation.bound.oracle import configurations
from evaluation.bound.physics import Physics
from simulation.engine.requests import draw_requests
from simulation.profiles.model import bundled
from simulation.profiles.model.bundled import nearest
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import TokenLengths
from tests.parameters import some_fast
from tests.unit.evaluation.bound.builders import EXPERT, PRICES, workload

SLO_S = 0.03


def seen(node: NodeInfo, calls_per_s: float | None, tokens: float, window_s: float) -> NodeObservation:
    rate = None if calls_per_s is None else calls_per_s * tokens
    return NodeObservation(
        node.id, node.function, node.kind, node.layer, node.expert, None, 1, None, None, None, None, None, None,
        rate, calls_per_s, None, None, None, None, 0.0 if calls_per_s is not None else None,
    )  # fmt: skip


def observation(rates: dict[str, float | None], window_s: float = 10.0) -> Observation:
    """32 tokens a call everywhere."""
    nodes = tuple(seen(node, rates.get(node.id, 0.0), 32.0, window_s) for node in workload(SLO_S).topology.nodes)
    numbers = (None,) * 8
    return Observation(0.0, window_s, "t", *numbers, nodes=nodes, layers=())


def rates(calls_per_s: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"expert-{i}-{j}": calls_per_s for i in range(2) for j in range(2)}
    return found | {f"segment-{i}": 2 * calls_per_s for i in range(3)}


def replicas(policy: LastWindowPolicy, found: Observation) -> list[int]:
    desired = policy.propose(found, 10.0, None).desired
    return [desired[f"t-expert-{i}-{j}"].replicas for i in range(2) for j in range(2)]


def test_it_proposes_the_optimum_of_the_window_it_saw() -> None:
    """Requests of one length at an even rate: the observation says as much as the requests do."""
    one = replace(workload(SLO_S), tokens=TokenLengths.fixed(32))
    arrivals = np.arange(0.005, 10.0, 0.01)
    drawn = draw_requests(one, arrivals, seed=0)
    drawn.counts.setflags(write=True)
    drawn.counts[1:, ::2], drawn.counts[1:, 1::2] = [[32], [0], [32], [0]], [[0], [32], [0], [32]]
    physics = Physics(one, drawn.most_tokens)
    load = next(windows(physics, drawn, 10.0, 10.0))
    oracle = deterministic(load, "provisioned", 0.8)
    proposal = LastWindowPolicy(one, LastWindowSettings(headroom=0.8)).propose(observation(rates(50.0)), 10.0, None)
    assert oracle.feasible and dict(proposal.desired) == configurations(physics, oracle.numbers)


@pytest.mark.slow
def test_a_layer_goes_from_cores_to_gpus_where_the_seconds_that_it_saves_are_missing() -> None:
    """By hand, at hardly any load: cores are cheaper (1.0 a second against 12) and slower. Four, two and no experts on
    GPU shares, and from one to the next a layer's difference, over the headroom, of the SLO."""
    alone = workload(SLO_S)
    slow_s, fast_s = (
        float(alone.latency.seconds(EXPERT, 32, cores, share)) for cores, share in ((1.0, 0.0), (0.0, 0.2))
    )

    def on_gpus(slo_s: float) -> int:
        policy = LastWindowPolicy(workload(slo_s), LastWindowSettings(headroom=0.5))
        desired = policy.propose(observation(rates(1e-6)), 10.0, None).desired
        return sum(configuration.gpu_share > 0 for configuration in desired.values())

    def least_slo_s(most: int) -> float:
        low_s, high_s = 1e-3, 10.0
        while high_s - low_s > 1e-7:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if on_gpus(middle_s) <= most else (middle_s, high_s)
        return high_s

    one, none = least_slo_s(2), least_slo_s(0)
    assert slow_s > fast_s and [on_gpus(slo_s) for slo_s in (one - 1e-5, one, none - 1e-5, none)] == [4, 2, 2, 0]
    assert none - one == pytest.approx((slow_s - fast_s) / 0.5, abs=1e-5)


def test_more_load_or_less_room_never_takes_less() -> None:
    policy = LastWindowPolicy(workload(SLO_S))
    cost = [
        sum(
            c.replicas * PRICES.unit_per_s(c) for c in policy.propose(observation(rates(x)), 0.0, None).desired.values()
        )
        for x in (1.0, 40.0, 80.0, 110.0)
    ]
    assert cost == sorted(cost) and cost[0] < cost[-1]
    doubled = LastWindowPolicy(workload(SLO_S), LastWindowSettings(load_factor=2.0))
    assert replicas(doubled, observation(rates(40.0))) == replicas(policy, observation(rates(80.0)))


def test_an_slo_that_cannot_be_met_takes_the_fastest_choice_and_says_so() -> None:
    proposal = LastWindowPolicy(workload(0.001)).propose(observation(rates(10.0)), 0.0, None)
    assert {desired.gpu_share for desired in proposal.desired.values()} == {0.2}
    assert "cannot be met" in proposal.reasons["t-expert-0-0"]


def test_a_load_that_nothing_serves_holds() -> None:
    proposal = LastWindowPolicy(workload(SLO_S)).propose(observation(rates(1e6)), 0.0, None)
    assert not proposal.desired and "serves" in proposal.reasons["t-expert-1-1"]


def test_one_unknown_load_holds_every_expert_and_no_segment_is_touched() -> None:
    proposal = LastWindowPolicy(workload(SLO_S)).propose(observation({**rates(10.0), "expert-1-0": None}), 0.0, None)
    assert not proposal.desired and set(proposal.reasons) == {f"t-expert-{i}-{j}" for i in range(2) for j in range(2)}
    assert "expert-1-0" in proposal.reasons["t-expert-0-1"]


def test_the_second_best_is_at_least_as_fast_and_nothing_as_fast_is_cheaper_but_the_choice() -> None:
    policy, found = LastWindowPolicy(workload(SLO_S)), observation(rates(40.0))
    plan = policy.plan(found, 0.4, lambda node: 1.0, None)
    assert plan.second
    for function, (other, more) in plan.second.items():
        chosen = plan.desired[function]
        prices = [3600 * one.replicas * PRICES.unit_per_s(one) for one in (chosen, other)]
        assert other != chosen and more > 0 and more == pytest.approx(prices[1] - prices[0])


def test_slow_segments_leave_experts_the_least_part_of_the_slo() -> None:
    slow = observation(rates(10.0))
    nodes = tuple(n._replace(latency_mean_s=1.0) if n.kind == "segment" else n for n in slow.nodes)
    policy, slow = LastWindowPolicy(workload(SLO_S)), replace(slow, nodes=nodes)
    assert "cannot be met" in policy.plan(slow, 1.0, lambda node: 1.0, None).reason
    assert f"{500 * SLO_S:.1f} ms" in policy.plan(slow, 1.0, lambda node: 1.0, None, least=0.5).reason


def test_what_segments_took_is_measured_where_it_was() -> None:
    slow = observation(rates(10.0))
    nodes = tuple(n._replace(latency_mean_s=0.02) if n.kind == "segment" else n for n in slow.nodes)
    policy = LastWindowPolicy(workload(0.05))
    assert "cannot be met" in policy.propose(replace(slow, nodes=nodes), 0.0, None).reasons["t-expert-0-0"]
    assert "cannot be met" not in policy.propose(slow, 0.0, None).reasons["t-expert-0-0"]


def making(pipeline: str, **more: object) -> Making:
    one = paper_workload("bert-4")
    settings = ControllerSettings("http://127.0.0.1:9", Path(), policy="evaluation.bound.last_window:make", **more)  # type: ignore[arg-type]
    topology = replace(one.topology, pipeline=pipeline)
    return Making(settings, topology, LimitSettings(space=one.space), one.prices)


def test_the_controller_makes_it_by_name(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('headroom = 0.3\nmeter = "busy"\n')
    policy = make_policy(making("bert-4", policy_settings=path, slo_s=0.2))
    assert isinstance(policy, LastWindowPolicy)
    assert (policy.settings.meter, policy.settings.headroom) == ("busy", 0.3)
    assert policy._physics.workload.slo_s == 0.2


@pytest.mark.parametrize(
    ("pipeline", "text", "sentence"),
    [
        ("minilm", "", "slo_s is None"),
        ("minilm", 'workload = "none"', "workload is 'none', not one of bert-4"),
        ("bert-4", "headroom = 0", "headroom is 0"),
        ("bert-4", 'meter = "both"', "meter is 'both'"),
        ("bert-4", "share = 1", "'share' is not known"),
        ("minilm", 'profile = "x.parquet"', "slo_s is None"),
    ],
)
def test_a_wrong_setting_is_refused(tmp_path: Path, pipeline: str, text: str, sentence: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=sentence):
        make_policy(making(pipeline, policy_settings=path))


def measured_making(pipeline: Path, name: str) -> Making:
    settings = ControllerSettings("http://127.0.0.1:9", pipeline, policy=name, slo_s=1.0, scale_segments=False)
    topology = load_topology(pipeline, 0)
    return Making(settings, topology, LimitSettings(space=ConfigurationSpace(gpu_shares=())), PRICES)


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(["staffing", "last-window"], 1))
def test_where_no_model_is_named_it_plans_with_this_trees_profile(minilm_pipeline: Path, name: str) -> None:
    policy: Any = make_policy(measured_making(minilm_pipeline, name))
    workload = getattr(policy, "_workload", None) or policy._physics.workload
    assert workload.measured and workload.slo_s == 1.0


def test_a_pipeline_without_a_profile_is_refused_by_name(
    minilm_pipeline: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundled, "nearest", lambda pipeline, machine: nearest(pipeline, machine, tmp_path))
    with pytest.raises(SettingsError, match="no latency model of 'minilm'; name a profile of it"):
        make_policy(measured_making(minilm_pipeline, "last-window"))
