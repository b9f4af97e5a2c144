"""Rounds, teacher and a whole run on real episodes, short ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from autoscaler.prices import Meter
from rl.agent.configuration_table import features_of
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.export import made
from rl.agent.settings import NetworkSettings
from rl.episodes import Clip, Episode, episode_of
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.ranges import Ranges
from rl.train.errors import TrainingError
from rl.train.limit import Limit
from rl.train.parallel_episodes import Decide, EpisodeWindow, simulate_all
from rl.train.rounds import Rounds
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings, ValidationSettings
from rl.train.teacher import Teacher, TeacherSettings
from rl.train.training_workloads import VARIANTS
from rl.train.validation import Judged, Validation, Validator
from rl.train.warm_start import to_indices
from simulation.workloads.custom import GPU_STARTS
from simulation.workloads.paper import paper_workload

SMALL = {"width": 8, "hidden": 8, "rank": 4}
SETTINGS = TrainingSettings(
    workloads=("bert-4",), windows=12, lanes=2, episode_windows=4, variants=(), mean_rps=(2.0, 2.0), branches=1,
    warm_start=6, clone_updates=2, curriculum=False, learner=LearnerSettings(batch_windows=2, actor_from=1),
    validation=ValidationSettings(seconds=300.0, mean_rps=(1.0,)), **SMALL,
)  # fmt: skip


def agent() -> PipelineDDPG:
    networks = NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES), **SMALL)  # type: ignore[arg-type]
    learner = PipelineDDPG(networks, SETTINGS.learner, seed=0)
    learner.set_logger(Logger(None, []))
    return learner


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    rounds = Rounds(SETTINGS, agent())
    rounds.run(0, teach=True)
    rounds.run(1, teach=False)
    return rounds


@pytest.mark.parametrize("meter", ["provisioned", "busy"])
def test_a_run_s_critic_counts_cost_as_its_meter_does(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.train.run.Validator", lambda *_: SimpleNamespace(trained=[]))
    run = Run(replace(SETTINGS, meter=meter), tmp_path)
    assert run.agent.learner.busy_meter == (meter == "busy")
    assert run.agent.critic.qf0.learner == run.agent.learner


def unanswered(simulate: Callable[..., Iterator[list[EpisodeWindow]]]) -> Callable[..., Iterator[list[EpisodeWindow]]]:
    """``simulate_all`` where in each window a request waits that is not overdue yet, and none is answered."""

    def simulated(*arguments: object) -> Iterator[list[EpisodeWindow]]:
        for row in simulate(*arguments):
            for window in row:
                waits = replace(window.outcome.window, latency_s=np.zeros(0), in_flight=1)
                yield [replace(window, outcome=replace(window.outcome, p95_s=None, window=waits))]

    return simulated


@pytest.mark.slow
def test_windows_in_which_requests_wait_without_an_answer_are_over_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("rl.train.rounds", "rl.train.validation"):
        monkeypatch.setattr(f"{module}.simulate_all", unanswered(simulate_all))
    tally = Rounds(SETTINGS, agent()).run(0, teach=True)
    assert tally.violated == tally.judged == tally.windows > 0
    monkeypatch.setattr(Validator, "_served", lambda *_: True)  # its search takes seconds
    monkeypatch.setattr("rl.train.validation.REPLAYED_PATTERNS", ("normal",))
    hours = Validator(SETTINGS, tmp_path)
    clip = hours.judge(lambda episodes, states: [state.present for state in states]).clips[0]
    assert clip.violated == clip.judged > 0 and clip.excess == 0.0


def test_a_round_keeps_every_window_with_what_followed_it(rounds: Rounds) -> None:
    ring = rounds.agent.replay_buffer.rings["bert-4"]
    assert len(ring) == rounds.agent.num_timesteps == 12  # 2 rounds of 2 lanes of 3 windows that can be decided
    assert all(step.following is not None for step in ring)
    assert [step.teacher is not None for step in ring] == [True] * 6 + [False] * 6
    assert ring[2].state is ring[0].following


def test_each_window_has_branches_that_decide_otherwise(rounds: Rounds) -> None:
    ring = rounds.agent.replay_buffer.rings["bert-4"]
    assert all(len(step.branches) == SETTINGS.branches for step in ring)
    assert any((branch.executed != step.executed).any() for step in ring for branch in step.branches)


def test_rewards_are_the_known_cost_of_what_was_executed(rounds: Rounds) -> None:
    """The window critic's closed form says the same as the simulator's meter."""
    buffer = rounds.agent.replay_buffer
    samples = buffer.stack("bert-4", buffer.rings["bert-4"])
    critic = rounds.agent.critic.qf0
    batch = samples.observations
    features = features_of(batch.space, samples.actions)
    known = critic.costs(batch, features, critic(batch, features)[1], samples.unit)
    assert torch.allclose(known, samples.rewards, rtol=1e-4)


@pytest.mark.slow
def test_the_same_round_of_the_same_agent_is_the_same(rounds: Rounds) -> None:
    again = Rounds(SETTINGS, agent())
    again.run(0, teach=True)
    pairs = zip(again.agent.replay_buffer.rings["bert-4"], rounds.agent.replay_buffer.rings["bert-4"], strict=False)
    assert all((one.executed == other.executed).all() and one.p95 == other.p95 for one, other in pairs)


def test_more_care_costs_more_and_plans_are_valid() -> None:
    clip = Clip("bert-4", "slow", 1, mean_rps=5.0, seconds=60.0)
    costs = []
    for keep in (1.3, 0.8):
        episode = episode_of(clip, start=paper_workload("bert-4").initial(GPU_STARTS[0]))
        state = episode.state()
        teacher = Teacher(episode.workload, episode.requests, TeacherSettings(keep=keep))
        careful, bold = (to_indices(plan, episode, state) for plan in teacher.plan(episode.observation, 2.0))
        least = np.take_along_axis(state.least_memory, careful[..., 2:3].astype(np.int64), 2)[..., 0]
        assert (careful[..., 0] >= least).all()
        assert prices(episode, bold) < prices(episode, careful)
        costs.append(prices(episode, careful))
    assert costs[0] < costs[1]


def prices(episode: Episode, actions: np.ndarray) -> float:
    """Of all experts a second."""
    chosen = episode.encoder.configuration_index.configurations(actions).values()
    return sum(one.replicas * episode.workload.prices.unit_per_s(one) for one in chosen)


@pytest.mark.slow
def test_variants_have_no_gpu_and_windows_of_their_own() -> None:
    settings = TrainingSettings.from_json(
        SETTINGS.as_json() | {"workloads": ["bert-4"], "variants": [VARIANTS[1].name], "mean_rps": [20, 20]}
    )
    agent_of_two = agent()
    rounds = Rounds(settings, agent_of_two)
    for number in range(2):
        rounds.run(number, teach=True)
    rings = agent_of_two.replay_buffer.rings
    assert set(rings) == {"bert-4", "bert-6-cores-2s"}
    space = agent_of_two.replay_buffer.spaces["bert-6-cores-2s"]
    assert space.sizes[1] == 6
    assert space.mask.shape == (12, 6)


def unjudged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Validation without its searches and simulations from now on; how often it was asked."""
    asked: list[int] = []

    def judge(self: Validator, decide: object) -> Validation:
        asked.append(1)
        return Validation((Judged("bert-4", "slow", 2.0 - 0.1 * len(asked), 1.0, 10, 0, 0.0),))

    monkeypatch.setattr(Validator, "judge", judge)
    monkeypatch.setattr(Validator, "_served", lambda self, clip: True)  # seconds a clip, of clips that nobody judges
    return asked


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return unjudged(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing stopped."""
    with pytest.MonkeyPatch.context() as patched:
        unjudged(patched)
        run = Run(SETTINGS, tmp_path_factory.mktemp("whole"))
        run.go()
    return run


def stopped_after(looks: int) -> Callable[[], bool]:
    """Whether it was asked more often than that."""
    asked = itertools.count()
    return lambda: next(asked) >= looks


def seconds_a_look() -> Callable[[], float]:
    """A clock that goes on by a second whenever it is read."""
    return itertools.count().__next__


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.agent.policy.parameters()])


@pytest.mark.slow
def test_a_run_that_goes_on_comes_to_the_same_actor(tmp_path: Path, judged: list[int], whole: Run) -> None:
    first = Run(SETTINGS, tmp_path / "parts")
    first._warm_start()
    first.store()
    second = Run(SETTINGS, tmp_path / "parts")
    second.go()
    assert torch.equal(weights(whole), weights(second))
    assert whole.agent.num_timesteps == second.agent.num_timesteps >= SETTINGS.windows
    assert (tmp_path / "parts" / BEST).is_file()
    assert any((tmp_path / "parts" / "tensorboard").iterdir())
    ranges = Ranges.from_json(made(tmp_path / "parts" / BEST)["ranges"])
    met = [step.state for ring in second.agent.replay_buffer.rings.values() for step in ring]
    assert met and not any(ranges.outside(state) for state in met)
    stored = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert set(stored) == {"settings", "code_sha256", "traces_sha256", "pipelines_sha256", "versions"}


@pytest.mark.slow
def test_a_run_that_is_stopped_in_its_warm_start_stores_an_actor_that_nobody_judged_and_goes_on(
    tmp_path: Path, judged: list[int]
) -> None:
    run = Run(SETTINGS, tmp_path)
    run.limit.stopped = lambda: True
    run.go()
    assert run.agent.num_timesteps == 0 and not judged and not (tmp_path / BEST).is_file()
    run.limit.stopped = stopped_after(1)
    run.go()
    assert 0 < run.agent.num_timesteps == run.limit.windows < SETTINGS.windows and not judged
    assert "validation" in made(tmp_path / BEST)
    again = Run(SETTINGS, tmp_path)
    again.go()
    assert judged and again.progress.best is not None


@pytest.mark.slow
def test_minutes_end_a_warm_start_too(tmp_path: Path, judged: list[int]) -> None:
    run = Run(replace(SETTINGS, warm_start=18), tmp_path)
    run.limit = Limit(3 / 60, clock=seconds_a_look())  # read before and after a round, and to log it
    run.go()
    assert run.progress.rounds == 1 and not run.progress.warm


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_clones_or_warms_its_critic_comes_to_the_same_actor(
    tmp_path: Path, judged: list[int], monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    monkeypatch.setattr("rl.train.run.CHUNK", 1)
    for looks, updates in ((2, (1, 0)), (1, (2, 0))):
        run = Run(SETTINGS, tmp_path / "parts")
        run.limit.stopped = stopped_after(looks)
        run.go()
        assert (run.progress.cloned, run.progress.warmed) == updates and not run.progress.warm
    last = Run(SETTINGS, tmp_path / "parts")
    last.go()
    assert torch.equal(weights(whole), weights(last))


@pytest.mark.slow
def test_minutes_end_a_validation_and_leave_the_actor_unjudged(
    tmp_path: Path, judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation that would never end is cut off."""
    run = Run(SETTINGS, tmp_path)

    def judge(self: Validator, decide: Decide) -> Validation:
        run.limit = Limit(0.1, clock=seconds_a_look())
        while True:
            decide([], [])

    monkeypatch.setattr(Validator, "judge", judge)
    monkeypatch.setattr(Run, "decide", lambda self, episodes, states: [])
    run.go()
    assert run.progress.warm and (run.progress.validated, run.progress.best) == (-1, None)
    assert made(tmp_path / BEST)["validation"].keys() == {"windows", "minutes"}


@pytest.mark.slow
def test_as_much_is_left_for_the_last_validation_as_the_one_before_took(tmp_path: Path, judged: list[int]) -> None:
    run = Run(replace(SETTINGS, windows=10**6), tmp_path)
    run.progress.validation_s = 600.0
    run.limit.minutes = (run.limit.spent_s + 300) / 60
    run.go()
    assert run.progress.warm and run.progress.validated == run.agent.num_timesteps == SETTINGS.warm_start


@pytest.fixture
def one_pattern(monkeypatch: pytest.MonkeyPatch) -> TrainingSettings:
    """Settings whose validation has hours of one pattern alone."""
    monkeypatch.setattr("rl.train.validation.REPLAYED_PATTERNS", ("normal",))
    return replace(
        SETTINGS, world="cores-only", relative_slo=5.0, validation=ValidationSettings(seconds=360.0, mean_rps=(1.0,))
    )


def test_minutes_end_the_choice_of_hours_and_the_same_command_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_pattern: TrainingSettings
) -> None:
    trials: list[int] = []

    def search(judged: Judged, *_: object) -> object:
        while len(trials) < 100:
            judged._look()  # type: ignore[attr-defined]
            trials.append(1)
        return "found"

    monkeypatch.setattr("rl.train.validation.cheapest_uniform", search)
    with pytest.raises(TrainingError, match=r"stopped after 0\.5 minutes, while choosing hours .* goes on there"):
        Run(one_pattern, tmp_path, limit=Limit(0.5, clock=seconds_a_look()))
    assert 10 < len(trials) < 30
    assert Run(one_pattern, tmp_path, limit=Limit(5, clock=seconds_a_look())).validator.clips


@pytest.mark.slow
def test_a_folder_with_another_run_is_refused(tmp_path: Path, judged: list[int]) -> None:
    Run(SETTINGS, tmp_path)
    other = TrainingSettings.from_json(SETTINGS.as_json() | {"seed": 1})
    with pytest.raises(TrainingError, match="other settings"):
        Run(other, tmp_path)


def test_an_actor_is_chosen_by_cost_among_those_that_keep_the_slo() -> None:
    def of(cost: float, violated: int) -> float:
        return Validation((Judged("bert-4", "slow", cost, 1.0, 100, violated, 0.0),)).score(SETTINGS.validation)

    assert of(1.5, 0) < of(1.6, 0)
    assert of(1.6, 1) < of(1.5, 20)


@pytest.mark.slow
def test_validation_leaves_out_hours_in_which_nothing_keeps_the_slo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_pattern: TrainingSettings
) -> None:
    searched: list[float] = []

    def first_fails(judged: Judged, *_: object) -> object:
        searched.append(judged.requests.arrival_s.size)  # type: ignore[attr-defined]
        return None if len(searched) == 1 else "found"

    monkeypatch.setattr("rl.train.validation.cheapest_uniform", first_fails)
    (clip,) = Validator(one_pattern, tmp_path).clips["bert-4"]
    assert len(searched) == 2
    again = Validator(one_pattern, tmp_path).clips["bert-4"]
    assert again == [clip] and len(searched) == 2, "what was found out is kept"
