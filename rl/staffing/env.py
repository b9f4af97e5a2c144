"""``smoe/Staffing-v0``: one step decides all experts for a window, :data:`rl.staffing.action.AXES` of each.

Importing this module registers it. Episodes are :class:`rl.episodes.Episode`: the controller's own limits, actuator and
meters on the simulator, as in ``smoe/Pipeline-v0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from autoscaler.contract import SLO_QUANTILE
from autoscaler.prices import total_cost
from rl.agent.contract import State
from rl.env import Observed, state_spaces
from rl.episodes import Episode
from rl.staffing.action import AXES, Staffing, room_of
from rl.staffing.features import NODES, PIPELINE
from rl.staffing.risk import RiskSettings, risk
from simulation.arrays import Floats

ENVIRONMENT = "smoe/Staffing-v0"


class StaffingEnv(gymnasium.Env[Observed, NDArray[np.float32]]):
    """Observation: state of the last window and the cluster's room. Action: [n · K · 9] within -1 and 1, of each
    expert its eight numbers and its priority less 1. Experts that a layer does not have are ignored.

    ``info`` has ``costs`` [n, K] in C_ref, ``p95`` over λ of what was answered or is overdue, and ``judged_p95`` of
    what was answered alone, infinite where requests wait and none was, as evaluations judge a window (None where there
    is nothing to judge). The reward is
    ``-(sum of costs + risk)``. An episode is truncated at its end, never terminated.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, episodes: Iterator[Episode], risks: RiskSettings | None = None) -> None:
        """``episodes``: without end, all of one shape of pipeline; each ``reset`` takes the next."""
        self._episodes, self.risks = episodes, risks or RiskSettings()
        self._episode = next(self._episodes)
        self._fresh = True
        self._read()
        layers, width = self.mask.shape
        self.observation_space = spaces.Dict(state_spaces(layers, width, NODES, PIPELINE))
        self.action_space = spaces.Box(-1.0, 1.0, (layers * width * (len(AXES) + 1),), np.float32)

    @property
    def episode(self) -> Episode:
        return self._episode

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[n, K]: where there is an expert."""
        return self._episode.encoder.configuration_index.mask

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        if not self._fresh:
            self._episode = next(self._episodes)
            self._read()
        self._fresh = False
        return observed(self._episode.state()), {}

    def _read(self) -> None:
        self._staffing = Staffing(self._episode.workload)

    def step(self, action: NDArray[np.float32]) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        episode, mask = self._episode, self.mask
        numbers = np.asarray(action, dtype=np.float32).reshape(*mask.shape, len(AXES) + 1)[mask]
        priority, room = 1.0 + numbers[:, -1].astype(np.float64), room_of(episode.state().room)
        desired = self._staffing.plan(episode.observation, numbers[:, :-1], priority, room).desired
        outcome = episode.order(desired or episode.present)
        costs = self._costs()
        p95 = None if outcome.p95_s is None else outcome.p95_s / episode.workload.slo_s
        judged_s = outcome.window.judged_s(SLO_QUANTILE)
        judged = None if judged_s is None else judged_s / episode.workload.slo_s
        info = {"costs": costs.astype(np.float32), "p95": p95, "judged_p95": judged}
        reward = -float(costs.sum()) - risk(p95, self.risks)
        return observed(episode.state()), reward, False, not episode.windows_left, info

    def _costs(self) -> Floats:
        """[n, K] of the experts in the last window, in C_ref; padding 0."""
        episode, mask = self._episode, self.mask
        _, by_node = total_cost(episode.observation, episode.workload.prices)
        costs = np.zeros(mask.shape)
        costs[mask] = [getattr(by_node[node.id], episode.settings.meter) for node in episode.workload.experts]
        return costs / episode.reference


def observed(state: State) -> Observed:
    """A state as the environment's observation."""
    return {
        "segments": state.segments.flatten(),
        "experts": state.experts.flatten(),
        "pipeline": state.pipeline.copy(),
    }


if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, entry_point="rl.staffing.env:StaffingEnv")
