"""Replay of whole windows: the state once, then the decisions of all its layers as they were executed.

A transition per layer would store and encode the graph n times over. Windows of one pipeline share a shape, so a batch
is drawn from one pipeline; pipelines are drawn in proportion to their windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from torch import Tensor

from rl.agent.contract import Batch, Floats32, Space, State
from rl.agent.ddpg.settings import LearnerError


@dataclass(frozen=True, eq=False)
class BranchStep:
    """The same window under other decisions, simulated next to it; what would follow is not known."""

    executed: NDArray[np.int16]
    rewards: Floats32
    p95: float
    """All as of :class:`WindowStep`."""


@dataclass(frozen=True, eq=False)
class WindowStep:
    """One window of one pipeline, and the state that followed it."""

    pipeline: str
    state: State
    executed: NDArray[np.int16]
    """[n, K, 4] what was really in force: after the decision limits."""
    rewards: Floats32
    """[n] of Eq. (13) without the SLO's part: -C_i / C_ref."""
    p95: float
    """P95 over λ, from which the SLO's part follows; NaN where no request was judged."""
    following: State | None
    """The next window's state; None where the episode really ended, so that nothing is expected after it."""
    teacher: NDArray[np.int16] | None = None
    """[n, K, 4] what a teacher would have done, where one was asked."""
    branches: tuple[BranchStep, ...] = ()


Rings = Mapping[str, Sequence[WindowStep]]
"""Pipeline → windows of it."""


class WindowSamples(NamedTuple):
    """A batch of B windows of one pipeline; the fields of the library's own samples, layers as a second axis."""

    observations: Batch
    actions: Tensor
    """[B, n, K, 4] int64."""
    next_observations: Batch
    """Where nothing follows, the state itself: ``dones`` keeps it out."""
    dones: Tensor
    """[B] float32: 1 where nothing follows."""
    rewards: Tensor
    """[B, n] float32 without the SLO's part."""
    p95: Tensor
    """[B] float32 over λ; NaN where no request was judged."""
    unit: float
    """What a layer's Σ replicas × price (of the features) costs in a window, in C_ref; the pipeline's."""
    teacher: Tensor
    """[B, n, K, 4] int64; the executed where there was no teacher."""
    taught: Tensor
    """[B] bool."""
    simulated: Tensor
    """[B] bool: False for branches, whose next observation is not theirs."""
    pairs: Tensor
    """[pairs, 2] int64: rows of a window as it was simulated and of one of its branches."""


class WindowBuffer(ReplayBuffer):
    """A ring of windows per pipeline. ``register`` a pipeline's Φ before its first window."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        seed: int = 0,
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = optimize_memory_usage
        self.seed = seed
        self.spaces: dict[str, Space] = {}
        self.units: dict[str, float] = {}
        self._rings: dict[str, list[WindowStep]] = {}
        self._next: dict[str, int] = {}

    def register(self, pipeline: str, space: Space, unit: float) -> None:
        """Make a pipeline known; the same one twice changes nothing."""
        self.spaces.setdefault(pipeline, space)
        self.units.setdefault(pipeline, unit)
        self._rings.setdefault(pipeline, [])
        self._next.setdefault(pipeline, 0)

    def size(self) -> int:
        return sum(map(len, self._rings.values()))

    @property
    def rings(self) -> Mapping[str, list[WindowStep]]:
        """Pipeline → its windows, in the order of the ring."""
        return self._rings

    @property
    def nexts(self) -> Mapping[str, int]:
        """Pipeline → where the ring's next window goes."""
        return self._next

    def add(self, step: WindowStep) -> None:  # type: ignore[override]
        """Raises LearnerError for a pipeline that is not registered, or rewards that are no numbers."""
        if step.pipeline not in self.spaces:
            raise LearnerError(f"replay: pipeline {step.pipeline!r} is not registered; known: {sorted(self.spaces)}")
        if not np.isfinite(step.rewards).all() or step.p95 < 0 or step.p95 == np.inf:
            raise LearnerError(f"replay: a window of {step.pipeline} has a reward or a P95 that is no number")
        ring, at = self._rings[step.pipeline], self._next[step.pipeline]
        if at < len(ring):
            ring[at] = step
        else:
            ring.append(step)
        self._next[step.pipeline] = (at + 1) % self.capacity

    @property
    def capacity(self) -> int:
        """Windows that each pipeline may have."""
        return max(1, self.buffer_size // max(1, len(self._rings)))

    def restore(self, pipeline: str, steps: list[WindowStep], at: int) -> None:
        """A ring as it was stored."""
        self._rings[pipeline], self._next[pipeline] = steps, at

    def taught(self) -> Rings:
        """The windows that have a teacher, without pipelines that have none."""
        rings = {name: [step for step in ring if step.teacher is not None] for name, ring in self._rings.items()}
        return {name: ring for name, ring in rings.items() if ring}

    def sample(  # type: ignore[override]
        self, batch_size: int, env: object = None, draw: int = 0, rings: Rings | None = None
    ) -> WindowSamples:
        """``batch_size`` windows of one pipeline, with repetition; where they have branches, half as many, each with
        one of its own. ``draw``: which update asks; the same number, the same windows, so that a resumed run goes on as
        it would have. ``rings``: the windows to draw from; None or empty: all. Raises LearnerError on an empty buffer.
        """
        rng, rings = np.random.default_rng((self.seed, draw)), rings or self._rings
        names = sorted(name for name, ring in rings.items() if ring)  # whatever order they were registered in
        if not names:
            raise LearnerError("replay: there is no window to learn from yet")
        sizes = np.array([len(rings[name]) for name in names], dtype=np.float64)
        name = names[int(rng.choice(len(names), p=sizes / sizes.sum()))]
        ring = rings[name]
        steps = [ring[int(at)] for at in rng.integers(len(ring), size=batch_size)]
        halves = steps[: max(1, batch_size // 2)]
        if not all(step.branches for step in halves):
            return self.stack(name, steps)
        drawn = [step.branches[int(rng.integers(len(step.branches)))] for step in halves]
        return self.stack(name, halves, drawn)

    def stack(self, pipeline: str, steps: list[WindowStep], branches: Sequence[BranchStep] = ()) -> WindowSamples:
        """Windows of ``pipeline`` as tensors; ``branches``: of each window one, as further rows, or none."""
        space = self.spaces[pipeline]
        every = [*steps, *steps[: len(branches)]]
        rows: list[WindowStep | BranchStep] = [*steps, *branches]
        taught = [step.executed if step.teacher is None else step.teacher for step in every]
        pairs = torch.arange(len(branches))
        return WindowSamples(
            Batch.of(space, [step.state for step in every]),
            _tensor([row.executed for row in rows]).long(),
            Batch.of(space, [step.following or step.state for step in every]),
            torch.tensor([step.following is None for step in every], dtype=torch.float32),
            _tensor([row.rewards for row in rows]).float(),
            torch.tensor([row.p95 for row in rows], dtype=torch.float32),
            self.units[pipeline],
            _tensor(taught).long(),
            torch.tensor([step.teacher is not None for step in every]),
            torch.tensor([isinstance(row, WindowStep) for row in rows]),
            torch.stack((pairs, pairs + len(steps)), -1),
        )


def _tensor(arrays: list[Any]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))
