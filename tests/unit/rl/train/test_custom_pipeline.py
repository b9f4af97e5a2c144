"""Training on one's own pipeline, on the machine of its profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from autoscaler.contract import Configuration
from rl.episodes import Clip, episode_of, work_of
from rl.train.commands import train
from rl.train.errors import TrainingError
from rl.train.rounds import Rounds
from rl.train.settings import TrainingSettings
from rl.train.steady import CONCURRENCY, TOLERATED
from rl.train.training_workloads import reference_of
from rl.train.validation import Validator
from rl.train.warm_start import teacher_of
from simulation.workloads.custom import CustomPipeline, CustomPipelineError
from tests.unit.rl.train.test_rounds import SETTINGS, agent

NO_TRACES = Path(__file__).parent
"""A folder without public traces: arrivals are made."""


@pytest.fixture(scope="module")
def own(minilm_pipeline: Path) -> CustomPipeline:
    return CustomPipeline(str(minilm_pipeline), 200.0, cpu_scale=0.03)


def settings_of(own: CustomPipeline) -> TrainingSettings:
    return TrainingSettings.from_json(SETTINGS.as_json() | {"workloads": [], "pipelines": [own.__dict__]})


@pytest.mark.slow
def test_windows_of_a_custom_pipeline_are_simulated_and_kept(own: CustomPipeline) -> None:
    learner = agent()
    rounds = Rounds(settings_of(own), learner, NO_TRACES)
    tally = rounds.run(0, teach=True)
    (ring,) = learner.replay_buffer.rings.values()
    assert set(learner.replay_buffer.rings) == {own.name}
    assert len(ring) == tally.windows == 6
    assert learner.replay_buffer.spaces[own.name].sizes[1] == 6  # cores alone
    assert {clip.window_s for clip, _ in tally.clips} == {2.0}
    assert tally.judged


@pytest.mark.slow
def test_clips_differ_in_routing_alone(own: CustomPipeline) -> None:
    first, second, again = own.workload(1), own.workload(2), own.workload(1)
    assert first.slo_s == second.slo_s == 0.2
    assert first.topology is second.topology and first.name == own.name
    assert first.host is not None
    assert np.array_equal(first.routing.popularity, again.routing.popularity)
    assert not np.array_equal(first.routing.popularity, second.routing.popularity)


@pytest.mark.slow
def test_cost_is_counted_in_what_ones_own_load_costs(own: CustomPipeline) -> None:
    reward = SETTINGS.reward
    assert (
        0 < reference_of(CustomPipeline(**own.__dict__ | {"mean_rps": (1.0, 1.0)}), reward) <= reference_of(own, reward)
    )


@pytest.mark.slow
def test_validation_simulates_a_custom_pipelines_clips(own: CustomPipeline, tmp_path: Path) -> None:
    validator = Validator(settings_of(own), tmp_path, NO_TRACES)
    judged = validator.judge(lambda episodes, states: [state.present for state in states])
    assert {(clip.workload, clip.pattern) for clip in judged.clips} == {
        (own.name, pattern) for pattern in ("bursty", "diurnal", "normal", "slow")
    }
    assert all(clip.cost > 0 for clip in judged.clips)


def test_a_faster_clip_has_the_same_arrivals_in_less_time() -> None:
    slow = Clip("bert-4", "bursty", 5, mean_rps=1.0, seconds=600.0)
    fast = Clip("bert-4", "bursty", 5, mean_rps=30.0, seconds=20.0, window_s=1.0, speed=30.0)
    one, other = (work_of(clip, NO_TRACES) for clip in (slow, fast))
    assert np.allclose(one.requests.arrival_s, 30 * other.requests.arrival_s)
    assert other.seconds == pytest.approx(one.seconds / 30)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slo_ms": 0.0}, "^custom pipeline: slo_ms is 0"),
        ({"mean_rps": (0.0, 1.0)}, "mean_rps is"),
        ({"speed": float("nan")}, "speed is nan"),
    ],
)
def test_refuses_a_custom_pipeline_with_a_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CustomPipelineError, match=says):
        CustomPipeline(**{"folder": "somewhere", "slo_ms": 100.0} | changes)


def test_settings_with_a_custom_pipeline_come_back_from_json(own: CustomPipeline) -> None:
    settings = settings_of(own)
    assert TrainingSettings.from_json(json.loads(json.dumps(settings.as_json()))) == settings


def test_the_same_pipeline_twice_is_refused(own: CustomPipeline) -> None:
    with pytest.raises(TrainingError, match="pipelines"):
        TrainingSettings(pipelines=(own, own))


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--slo-ms", "100"], "--pipeline, which is missing"), (["--pipeline", "."], "--pipeline needs --slo-ms")],
)
def test_the_command_says_what_is_missing(options: list[str], says: str) -> None:
    result = CliRunner().invoke(train, options)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


@pytest.mark.slow
def test_on_a_shared_machine_the_teacher_plans_the_cheapest_that_serves_the_clip(minilm_pipeline: Path) -> None:
    slow = CustomPipeline(str(minilm_pipeline), 300.0, cpu_scale=0.015)
    workload = slow.workload(1)
    clip = Clip(slow.name, "normal", 1, mean_rps=3.0, seconds=40.0, window_s=2.0, speed=30.0)
    shares = []
    for start in slow.workload(1).space.resources:
        choice = Configuration(128, *start, 1, CONCURRENCY)
        episode = episode_of(clip, start=workload.initial(choice), workload=workload, data=NO_TRACES, reference=1.0)
        p95s = [episode.outcome.window.quantile_s(0.95)]
        while episode.windows_left:
            p95s.append(episode.step(episode.state().present).window.quantile_s(0.95))
        judged = [p95_s for p95_s in p95s if p95_s is not None]
        shares.append(sum(p95_s > workload.slo_s for p95_s in judged) / len(judged))
    wanted = next(cores for cores, share in enumerate(shares, 1) if share <= min(shares) + TOLERATED)
    teacher = teacher_of(episode, SETTINGS.teacher)
    careful, bold = teacher.plan(episode.observation, 2.0)
    assert {plan.cpu_cores for plan in careful.values()} == {wanted}
    assert {plan.cpu_cores for plan in bold.values()} == {max(1, wanted - 2)}
    assert shares[0] > shares[-1]  # or there was nothing to choose
