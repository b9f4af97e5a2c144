"""Which episodes are trained on: never the test set, equal by seed, the evaluation's start; what teachers plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from evaluation.bound.loads import windows
from evaluation.bound.oracle import simulate
from evaluation.bound.physics import Physics
from evaluation.comparison.arrivals import arrivals
from evaluation.comparison.grid import Grid, Group
from rl.episodes import Clip, episode_of, start_of, steady_cost, training_clips, work_of
from rl.episodes.clips import SEEDS
from rl.episodes.sizes import resized
from simulation.workloads.paper import paper_workload
from tests.unit.rl.env.builders import START, drawn, workload

NO_TRACES = Path(__file__).parent
"""A folder without public traces: arrivals are made."""
CLIP = Clip("bert-4", "bursty", 5, mean_rps=3.0, seconds=120.0)


def test_clips_are_equal_by_seed_and_take_every_workload_in_each_round() -> None:
    names = ("bert-4", "gpt2-6", "b2b-4")
    first = list(islice(training_clips(names, seed=1), 9))
    assert first == list(islice(training_clips(names, seed=1), 9))
    assert first != list(islice(training_clips(names, seed=2), 9))
    assert all({clip.workload for clip in first[i : i + 3]} == set(names) for i in (0, 3, 6))
    assert all(5 <= clip.mean_rps <= 40 and clip.split == "train" for clip in first)
    assert len({clip.seed for clip in first}) == 9


def test_there_are_no_clips_of_the_test_set() -> None:
    with pytest.raises(ValueError, match="clips are of train and validation, not of 'test'"):
        Clip("bert-4", "bursty", 0, split="test")


def test_training_validation_and_evaluation_meet_other_requests_under_the_same_seed() -> None:
    found = [work_of(Clip("bert-4", "bursty", 5, split, 3.0, 0, 120.0), NO_TRACES) for split in SEEDS]
    grid = Grid(("bert-4",), ("bursty",), (0,), ("static",), (5,), START, seconds=120.0, mean_rps=3.0, data=NO_TRACES,
                warm_up_windows=1)  # fmt: skip
    tested = arrivals(grid, Group("bert-4", "bursty", 0, 5))
    hashes = {work.requests.sha256 for work in found}
    assert len(hashes) == 2
    assert all(not np.array_equal(work.requests.arrival_s, tested.arrival_s) for work in found)
    tables = [work.workload.routing.popularity for work in found]
    assert not np.array_equal(*tables) and not np.array_equal(
        tables[0], paper_workload("bert-4", seed=5).routing.popularity
    )


def test_a_start_keeps_the_slo_in_the_first_windows_and_is_found_again_in_the_cache(tmp_path: Path) -> None:
    work = work_of(CLIP, NO_TRACES)
    start = start_of(work, tmp_path)
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["start"]
    assert start_of(work, tmp_path) == start
    physics = Physics(work.workload, work.requests.most_tokens)
    load = next(load for load in windows(physics, work.requests, 120.0, 120.0) if load.count)
    experts = {node.function: start[node.function] for node in work.workload.experts}
    _, p95_s = simulate(load, experts, "provisioned", work.seed)
    assert p95_s <= work.workload.slo_s


@pytest.mark.slow
def test_the_reference_is_one_number_a_workload_in_proportion_to_the_window() -> None:
    one = workload()
    assert steady_cost(one, "provisioned", 10.0) == pytest.approx(steady_cost(one, "provisioned", 30.0) / 3)
    assert 0 < steady_cost(one, "busy") < steady_cost(one, "provisioned")
    short, long = (episode_of(Clip("bert-4", "slow", 1, mean_rps=rps, seconds=60.0), start=workload().initial(START),
                              data=NO_TRACES) for rps in (2.0, 4.0))  # fmt: skip
    assert short.reference == long.reference


def test_windows_may_have_another_length() -> None:
    clip = Clip("bert-4", "slow", 1, mean_rps=4.0, seconds=20.0, window_s=5.0)
    one = episode_of(clip, start=workload().initial(START), data=NO_TRACES)
    assert (one.windows, one.window_s, one.windows_left) == (4, 5.0, 3)
    assert one.step(one.state().present).window.end_s == 10.0


def test_a_resized_pipeline_keeps_its_shared_experts_and_has_enough_to_choose_among() -> None:
    whole = paper_workload("bert-4")
    large = replace(whole.costs["expert-0-3"], weights_bytes=1e9)
    last = [f"expert-{layer}-3" for layer in range(whole.topology.layers)]
    whole = replace(whole, shared=1, costs=whole.costs | dict.fromkeys(last, large))
    made = resized(whole, 2, 6)
    assert [made.costs[f"expert-0-{j}"] == large for j in range(6)] == [False] * 5 + [True]
    with pytest.raises(ValueError, match=f"{whole.top_k + 1} experts or more"):
        resized(whole, 2, whole.top_k)


@pytest.mark.parametrize(("layers", "experts"), [(2, 3), (6, 16), (15, 4)])
def test_a_resized_pipeline_has_that_many_layers_and_experts_and_can_be_simulated(layers: int, experts: int) -> None:
    made = resized(paper_workload("b2b-4"), layers, experts, seed=1)
    assert made.topology.layers == layers and len(made.experts) == layers * experts
    assert made.slo_s == pytest.approx(0.12 * layers / 24) and len(made.segments) == layers + 1
    assert made.costs[f"segment-{layers}"] == paper_workload("b2b-4").costs["segment-24"]
    clip = Clip(made.name, "slow", 1, mean_rps=2.0, seconds=60.0)
    one = episode_of(clip, start=made.initial(START), data=NO_TRACES, workload=made)
    outcome = one.step(drawn(one.encoder.configuration_index, one.state(), np.random.default_rng(0)))
    assert outcome.finished > 0 and one.encoder.configuration_index.mask.all() and outcome.reward.shape == (layers,)
