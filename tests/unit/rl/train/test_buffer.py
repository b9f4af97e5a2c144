"""Replay of whole windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger

from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.buffer import BranchStep, WindowBuffer, WindowStep
from rl.agent.ddpg.checkpoint import load_windows, save_windows
from rl.agent.ddpg.settings import LearnerError, LearnerSettings
from tests.unit.rl.train import world

BOX = spaces.Box(-1, 1, (3,), np.float32)


def empty(size: int = 100) -> WindowBuffer:
    buffer = WindowBuffer(size, BOX, BOX, seed=3)
    buffer.register(world.NAME, world.space(), world.UNIT)
    return buffer


def filled(windows: int, size: int = 100) -> WindowBuffer:
    buffer, rng = empty(size), np.random.default_rng(0)
    loads = rng.choice(world.LOADS, size=(windows + 1, 2))
    states = [world.state_of(pair) for pair in loads]
    for number in range(windows):
        actions = rng.integers(0, 2, size=(2, 1, 4)).astype(np.int16)
        last = number == windows - 1
        one = world.window(loads[number], actions, None if last else states[number + 1])
        taught = actions[::-1].copy() if number % 2 else None
        buffer.add(WindowStep(one.pipeline, states[number], one.executed, one.rewards, one.p95, one.following, taught))
    return buffer


def test_it_is_the_librarys_buffer_with_windows_in_it() -> None:
    assert isinstance(filled(2), ReplayBuffer)
    assert filled(5).size() == 5


def test_a_batch_has_one_shape_and_holds_what_was_put_in() -> None:
    buffer = filled(7)
    samples = buffer.sample(4, draw=1)
    assert samples.observations.experts.shape == (4, 2, 1, world.NODE)
    assert samples.actions.shape == samples.teacher.shape == (4, 2, 1, 4)
    rows = {(float(step.rewards[0]), step.p95) for step in buffer.rings[world.NAME]}
    found = zip(samples.rewards[:, 0].tolist(), samples.p95.tolist(), strict=True)
    assert all(any(pair == pytest.approx(row) for row in rows) for pair in found)


def test_the_same_draw_gives_the_same_windows_and_another_others() -> None:
    buffer = filled(50)
    first, again, other = (buffer.sample(8, draw=draw).rewards for draw in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_pipelines_are_drawn_in_proportion_to_their_windows() -> None:
    buffer = filled(30)
    buffer.register("other", world.space(), world.UNIT)
    step = buffer.rings[world.NAME][0]
    for _ in range(10):
        buffer.add(WindowStep("other", step.state, step.executed, step.rewards - 100, step.p95, None))
    share = np.mean([float(buffer.sample(1, draw=draw).rewards[0, 0]) < -50 for draw in range(400)])
    assert 0.15 < share < 0.35


def test_a_full_ring_forgets_the_oldest() -> None:
    buffer = filled(5, size=3)
    kept = [float(step.rewards[0]) for step in buffer.rings[world.NAME]]
    every = [float(step.rewards[0]) for step in filled(5).rings[world.NAME]]
    assert sorted(kept) == sorted(every[2:])


def test_windows_that_end_an_episode_have_nothing_after_them() -> None:
    buffer = filled(3)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    assert samples.dones.tolist() == [0.0, 0.0, 1.0]
    assert torch.equal(samples.next_observations.experts[0], samples.observations.experts[1])
    assert samples.taught.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        pytest.param({"pipeline": "unknown"}, "not registered", id="unknown pipeline"),
        pytest.param({"rewards": np.array([np.nan], dtype=np.float32)}, "no number", id="reward"),
        pytest.param({"p95": -1.0}, "no number", id="p95"),
    ],
)
def test_refuses_with_a_sentence(step: dict, says: str) -> None:
    one = vars(filled(1).rings[world.NAME][0]) | step
    with pytest.raises(LearnerError, match=says):
        empty().add(WindowStep(**one))


def test_an_empty_buffer_says_so() -> None:
    with pytest.raises(LearnerError, match="no window"):
        empty().sample(4)


def test_windows_come_back_from_their_file(tmp_path: Path) -> None:
    buffer, again = filled(9, size=6), empty(6)
    save_windows(tmp_path / "windows.npz", buffer)
    load_windows(tmp_path / "windows.npz", again)
    assert again.nexts == buffer.nexts
    for draw in range(20):
        first, second = buffer.sample(4, draw=draw), again.sample(4, draw=draw)
        assert torch.equal(first.actions, second.actions)
        assert torch.equal(first.teacher, second.teacher)
        assert torch.equal(first.next_observations.experts, second.next_observations.experts)
        assert torch.equal(first.dones, second.dones)


def test_a_state_s_room_comes_back_so_that_what_follows_is_decided_within_it(tmp_path: Path) -> None:
    buffer, again = empty(), empty()
    rooms = [np.array([6.0, 2048.0, 3.0], dtype=np.float32), None]
    for step, room in zip(filled(2).rings[world.NAME], rooms, strict=True):
        buffer.add(replace(step, state=replace(step.state, room=room), following=None))
    save_windows(tmp_path / "windows.npz", buffer)
    load_windows(tmp_path / "windows.npz", again)
    first, second = (step.state.room for step in again.rings[world.NAME])
    assert first is not None and first.dtype == np.float32 and (first == rooms[0]).all() and second is None


def branched(windows: int) -> WindowBuffer:
    """Each window beside two branches whose P95 is the window's times 10 and times 100."""
    buffer, plain = empty(), filled(windows)
    for step in plain.rings[world.NAME]:
        branches = tuple(BranchStep(step.executed, step.rewards, step.p95 * factor) for factor in (10, 100))
        buffer.add(replace(step, branches=branches))
    return buffer


def test_windows_with_branches_come_in_pairs_of_the_same_state(tmp_path: Path) -> None:
    buffer, again = branched(9), empty()
    save_windows(tmp_path / "windows.npz", buffer)
    load_windows(tmp_path / "windows.npz", again)
    factors = set()
    for draw in range(10):
        samples = again.sample(8, draw=draw)
        simulated, branch = samples.pairs.unbind(-1)
        assert samples.simulated.tolist() == [True] * 4 + [False] * 4
        assert torch.equal(samples.observations.experts[simulated], samples.observations.experts[branch])
        factors |= {round(float(one)) for one in samples.p95[branch] / samples.p95[simulated]}
        assert torch.equal(samples.p95, buffer.sample(8, draw=draw).p95)
    assert factors == {10, 100}


def test_a_file_with_a_pickle_in_it_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "windows.npz"
    np.savez(path, **{f"{world.NAME}/segments": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(LearnerError, match="cannot be read"):
        load_windows(path, empty())


def test_a_warm_start_draws_from_taught_windows_alone_however_many_others_a_log_holds() -> None:
    buffer = filled(40)
    assert all(samples.taught.all() for samples in (buffer.sample(8, draw=n, rings=buffer.taught()) for n in range(9)))
    agent = PipelineDDPG(world.networks(), LearnerSettings(batch_windows=8), seed=0)
    agent.set_logger(Logger(None, []))
    agent.replay_buffer = buffer
    seen = list[bool]()
    agent.clone_loss = lambda samples: seen.extend(samples.taught.tolist()) or torch.zeros((), requires_grad=True)  # type: ignore[method-assign]
    agent.clone(3)
    assert len(seen) == 24 and all(seen)


def test_where_all_windows_are_taught_the_draws_are_those_of_all() -> None:
    buffer = empty()
    for step in filled(20).rings[world.NAME]:
        buffer.add(replace(step, teacher=step.executed))
    for draw in range(5):
        pair = buffer.sample(4, draw=draw), buffer.sample(4, draw=draw, rings=buffer.taught())
        assert torch.equal(pair[0].rewards, pair[1].rewards)
