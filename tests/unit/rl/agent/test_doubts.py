"""When the learnt policy doubts itself: states beyond those of its training, and calls that take other times."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.policy.fallback import FallbackPolicy, FallbackSettings
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.state.targets import Targets
from evaluation.comparison.policies import limits_of
from rl.agent.contract import State
from rl.agent.doubts import Doubts, ranges_of
from rl.agent.errors import NetworkError
from rl.agent.export import load, save
from rl.agent.policy import LearntPolicy
from rl.agent.settings import NetworkSettings
from rl.agent.variants import actor
from rl.episodes import Episode
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.ranges import Ranges
from simulation.engine.controlled import simulate_policy
from simulation.engine.simulation import Simulation
from simulation.latency.roofline import Roofline
from tests.unit.rl.env.builders import REFERENCE, START, requests, workload

SECONDS = 300.0


def slow(times: float) -> Roofline:
    """The workload's cluster, on which everything takes ``times`` times as long."""
    cpu, gpu, network = Roofline().cpu, Roofline().gpu, Roofline().network
    return Roofline(
        cpu=replace(cpu, core_flops_per_s=cpu.core_flops_per_s / times, core_bytes_per_s=cpu.core_bytes_per_s / times),
        gpu=replace(
            gpu,
            flops_per_s=gpu.flops_per_s / times,
            bytes_per_s=gpu.bytes_per_s / times,
            link_bytes_per_s=gpu.link_bytes_per_s / times,
            launch_s=gpu.launch_s * times,
        ),
        network=replace(network, bytes_per_s=network.bytes_per_s / times, call_s=network.call_s * times),
    )


def episode(rps: float = 4.0, times: float = 1.0) -> Episode:
    """On a machine on which calls take ``times`` times as long as the workload's."""
    one = workload()
    slowed = replace(one, latency=slow(times))
    return Episode(slowed, requests(SECONDS, rps), one.initial(START), reference=REFERENCE, seconds=SECONDS)


def met(one: Episode) -> list[State]:
    """The states of an episode in which nothing is changed."""
    states = []
    while one.windows_left:
        states.append(one.state())
        one.step(states[-1].present)
    return states


@pytest.fixture(scope="module")
def ranges() -> Ranges:
    return Ranges.of(met(episode()))


def test_what_was_trained_on_is_inside(ranges: Ranges) -> None:
    stored = Ranges.from_json(ranges.as_json())
    for state in met(episode()):
        assert ranges.outside(state) == stored.outside(state) == ""


@pytest.mark.slow
def test_ten_times_the_load_is_outside_and_a_fifth_more_is_not(ranges: Ranges) -> None:
    assert ranges.outside(met(episode(rps=4.8))[-1]) == ""
    outside = ranges.outside(met(episode(rps=40.0))[-1])
    assert "beyond all that was trained on" in outside


def test_a_number_that_was_always_known_and_is_not_now_is_outside(ranges: Ranges) -> None:
    one = episode()
    nodes = tuple(node._replace(requests_per_s=float("nan")) for node in one.observation.nodes)
    blind, _ = one.encoder.encode(replace(one.observation, nodes=nodes))
    assert "unknown of experts" in ranges.outside(blind)


def test_without_a_state_nothing_is_outside() -> None:
    assert Ranges.of([]).outside(met(episode())[0]) == ""


@pytest.mark.parametrize(("times", "doubted"), [(1.0, False), (1.4, False), (3.0, True), (0.25, True)])
def test_calls_that_take_other_times_are_doubted(times: float, doubted: bool) -> None:
    one = episode(times=times)
    doubts = Doubts(episode().encoder, None)
    sentence = doubts.sentence(one.state(), one.observation)
    assert bool(sentence) is doubted
    if doubted:
        ratio = float(sentence.split()[2])
        assert times / 1.5 < ratio < times * 1.5


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, ranges: Ranges) -> Path:
    """An actor's file with ranges; it has learnt nothing."""
    path = tmp_path_factory.mktemp("actor") / "actor.safetensors"
    save(path, actor(NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES))), {"ranges": ranges.as_json()})
    return path


def guarded_share(path: Path, times: float) -> float:
    """Share of the windows of a run in which the guard's rule decides."""
    one = episode()
    learnt = LearntPolicy(load(path), one.encoder, ranges_of(path))
    policy = FallbackPolicy(learnt, HpaPolicy(), FallbackSettings(Targets(1e3)))
    slowed = replace(workload(), latency=slow(times))
    simulation = Simulation(slowed, requests(SECONDS), slowed.initial(START), seed=0)
    steps = simulate_policy(simulation, policy, limits_of(slowed), window_s=30.0, until_s=SECONDS)
    return float(np.mean([step.report.policy == "hpa" for step in steps]))


def test_the_rule_decides_where_the_machine_is_another(trained: Path) -> None:
    assert guarded_share(trained, 4.0) >= 0.8


def test_a_file_without_ranges_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "actor.safetensors"
    save(path, actor(NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES))), {})
    with caplog.at_level(logging.WARNING, "smoe.agent"):
        assert ranges_of(path) is None
    assert "does not state what it was trained on" in caplog.text


def test_ranges_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "actor.safetensors"
    save(path, actor(NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES))), {"ranges": {"experts": 3}})
    with pytest.raises(NetworkError, match="ranges"):
        ranges_of(path)
