"""What agents see, what they wish, and that a stored agent is the one that was saved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import Configuration, Observation
from autoscaler.decision.limits import memory_need
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings
from evaluation.comparison import learnt_files
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.learnt_files import learnt_file
from evaluation.comparison.policies import limits_of, policy_of
from rl.faasconf.actions import OUTPUTS
from rl.faasconf.agent import Agent, load, save
from rl.faasconf.features import FEATURES
from rl.faasconf.networks import Actor
from rl.faasconf.policy import WEIGHTS, FaasconfPolicy, Pipeline
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from tests.parameters import examples
from tests.unit.rl.faasconf.conftest import Observe, node_of


def agent(seed: int = 0) -> Agent:
    torch.manual_seed(seed)
    count = len(FEATURES)
    return Agent(Actor(count, len(OUTPUTS)).eval(), torch.rand(count), 0.5 + torch.rand(count))


def test_a_state_is_the_numbers_of_its_function_and_of_the_pipeline(pipeline: Pipeline, observe: Observe) -> None:
    """λ is 50 ms over two layers; a core of one size is the middle of all of that axis."""
    states = pipeline.states(observe())
    assert states is not None and states.shape == (4, len(FEATURES))
    expected = {
        "gpu": 0.25,
        "size": 0.5,
        "memory": 0.5,
        "replicas": 0.25,
        "concurrency": 0.5,
        "utilisation": 0.5,
        "memory_utilisation": 0.25,
        "slots_used": 0.5,
        "waiting": math.log(1.5),
        "latency_p95": 2.0,
        "latency_mean": 0.5,
        "tokens_per_s": math.log(100),
        "requests_per_s": math.log(10),
        "pipeline_requests_per_s": math.log(10),
        "pipeline_latency_p95": 2.0,
    }
    assert dict(zip(FEATURES, states[0].tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def test_a_decision_by_hand(pipeline: Pipeline, observe: Observe) -> None:
    """All weights 0 but a path through both layers: GPU's logit is 2 ln(1 + waiting) - 1, so below ½ for 0.5 waiting
    calls and above for 3; the bias asks for the upper half of the replicas."""
    count = len(FEATURES)
    actor = Actor(count, len(OUTPUTS)).eval()
    first, second, last = (actor.layers[place] for place in (0, 3, 6))
    with torch.no_grad():
        for weight in actor.parameters():
            weight.zero_()
        for norm in (actor.layers[2], actor.layers[5]):
            norm.weight.fill_(1.0)  # type: ignore[union-attr, operator]
        first.weight[0, FEATURES.index("waiting")] = 1.0  # type: ignore[union-attr, index, operator]
        second.weight[0, 0] = 1.0  # type: ignore[union-attr, index, operator]
        last.weight[OUTPUTS.index("gpu"), 0] = 2.0  # type: ignore[union-attr, index, operator]
        last.bias.copy_(torch.tensor([-1.0, 0.0, 0.0, 1.0, 0.0]))  # type: ignore[union-attr, operator]
    one = Agent(actor, torch.zeros(count), torch.ones(count))
    desired = FaasconfPolicy(one, pipeline).propose(observe(2, waiting=3.0), 0.0, None).desired
    cores, share = Configuration(128, 1.0, 0.0, 2, 3), Configuration(128, 0.0, 0.2, 2, 3)
    assert desired == {f"t-expert-{i}-{j}": share if (i, j) == (1, 0) else cores for i in range(2) for j in range(2)}


@pytest.mark.parametrize("missing", ["configuration", "tokens_per_s", "requests_per_s", "peak_tokens"])
def test_all_are_held_where_a_number_of_one_is_missing(pipeline: Pipeline, observe: Observe, missing: str) -> None:
    proposal = FaasconfPolicy(agent(), pipeline).propose(observe(2, **{missing: None}), 0.0, None)
    assert not proposal.desired and len(proposal.reasons) == 4
    assert all("no data" in reason for reason in proposal.reasons.values())


def test_a_function_without_calls_is_no_missing_number(pipeline: Pipeline, observe: Observe) -> None:
    idle = observe(1, latency_p95_s=None, latency_mean_s=None, tokens_per_s=0.0, requests_per_s=0.0)
    assert len(FaasconfPolicy(agent(), pipeline).propose(idle, 0.0, None).desired) == 4


def test_old_data_is_not_decided_on(pipeline: Pipeline, observe: Observe) -> None:
    assert pipeline.states(replace(observe(), stale=True)) is None


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1e7), st.floats(0, 1e4), st.floats(0, 10))
def test_proposals_are_in_the_space_and_keep_eq_2(seed: int, peak: float, load_per_s: float, latency_s: float) -> None:
    workload = paper_workload("bert-4")
    limits = limits_of(workload)
    chosen = FaasconfPolicy(agent(seed), Pipeline(workload.topology, limits, 0.08)).propose(
        observed(workload, peak, load_per_s, latency_s), 0.0, None
    )
    assert len(chosen.desired) == 48
    for node in workload.experts:
        desired = chosen.desired[node.function]
        need = memory_need([node], [observed(workload, peak, 0, 0).node(node.id)], limits)
        assert need is not None and desired in workload.space
        assert need.holds(desired) or all(size is None for size in workload.space.mask(need).values())


def observed(workload: Workload, peak: float, load_per_s: float, latency_s: float) -> Observation:
    """All experts of a workload with the same numbers."""
    nodes = tuple(
        node_of(
            workload.topology,
            place,
            peak_tokens=peak,
            tokens_per_s=load_per_s,
            requests_per_s=load_per_s,
            latency_p95_s=latency_s,
        )
        for place in range(len(workload.experts))
    )
    return Observation(0.0, 30.0, workload.name, 1.0, 0.0, load_per_s, None, 1.0, None, latency_s, None, nodes, ())


def test_a_saved_agent_decides_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    one, states = agent(), np.random.default_rng(0).normal(size=(4, len(FEATURES))).astype(np.float32)
    for layer in one.actor.layers:
        if isinstance(layer, torch.nn.BatchNorm1d):
            assert layer.running_mean is not None
            layer.running_mean.add_(0.3)
    save(one, tmp_path / "a.safetensors", {"workload": "w", "seed": 3})
    other, about = load(tmp_path / "a.safetensors")
    assert about == {"workload": "w", "seed": 3}
    assert (one.outputs(states, torch.ones(4, 4)) == other.outputs(states, torch.ones(4, 4))).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_that_are_no_agents_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(b"{}")
    with pytest.raises(SettingsError, match=r"odd\.safetensors cannot be read"):
        load(path)
    save(agent(), path, {})
    monkeypatch.setattr("rl.faasconf.agent.FEATURES", ("other",))
    with pytest.raises(SettingsError, match="features"):
        load(path)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("mean", torch.full((len(FEATURES),), torch.nan)),
        ("mean", torch.zeros(3)),
        ("spread", torch.zeros(len(FEATURES))),
    ],
    ids=["not-a-number", "of-other-features", "no-spread"],
)
def test_a_scale_that_is_none_is_refused(part: str, value: torch.Tensor, tmp_path: Path) -> None:
    save(replace(agent(), **{part: value}), tmp_path / "a.safetensors", {})
    with pytest.raises(SettingsError, match="not finite, or no scale"):
        load(tmp_path / "a.safetensors")


def test_the_controller_makes_it_from_a_settings_file(small: Workload, tmp_path: Path) -> None:
    save(agent(), tmp_path / "a.safetensors", {})
    (tmp_path / "p.toml").write_text(f'weights = "{tmp_path / "a.safetensors"}"')
    given_settings = ControllerSettings(
        "http://127.0.0.1:9", Path(), policy="faasconf", policy_settings=tmp_path / "p.toml", slo_s=0.05
    )
    making = Making(given_settings, small.topology, limits_of(small), small.prices)
    assert make_policy(making).name == "faasconf"
    with pytest.raises(SettingsError, match="slo_s"):
        make_policy(replace(making, settings=replace(given_settings, slo_s=None)))
    with pytest.raises(SettingsError, match="no weights of t; train"):
        make_policy(replace(making, settings=replace(given_settings, policy_settings=None)))


@pytest.mark.parametrize("name", PAPER_WORKLOADS)
def test_workloads_of_the_paper_have_weights_of_their_family(name: str) -> None:
    grid = Grid((name,), ("slow",), (0,), ("faasconf",), (0,))
    assert policy_of("faasconf", paper_workload(name), grid, Group(name, "slow", 0, 0)).name == "faasconf"
    path = learnt_file("faasconf", name)
    assert path is not None
    about = load(path)[1]
    assert about["workload"].partition("-")[0] == name.partition("-")[0]
    assert about["validation"]["judged_windows"] > 0


def test_weights_of_the_same_name_come_before_the_familys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_files, "FAASCONF", tmp_path)
    assert learnt_file("faasconf", "bert-8") is None and learnt_file("hpa", "bert-8") is None
    for name in ("bert-4", "bert-6"):
        (tmp_path / f"{name}.safetensors").touch()
    found = [learnt_file("faasconf", name) for name in ("bert-6", "bert-8", "gpt2-4")]
    assert [path.stem if path else None for path in found] == ["bert-6", "bert-4", None]


def test_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 300_000
