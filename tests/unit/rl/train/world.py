"""A pipeline of two experts, one after the other, whose best decisions are known: a window is a formula.

An expert with load x on resource r with p replicas answers in ``x · seconds[r] / p`` parts of λ; the pipeline takes as
long as both. A replica costs ``price[r]``. Concurrency and memory change nothing here, beyond Eq. (2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from rl.agent.contract import CONFIGURATION_FEATURES, Space, State
from rl.agent.ddpg.buffer import WindowStep
from rl.agent.settings import NetworkSettings
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.configuration_index import scaled_log

SECONDS = np.array([2.0, 1.0, 0.4])
PRICE = np.array([0.2, 0.4, 1.0])
REPLICAS = np.array([1, 2, 4])
LOADS = np.array([0.2, 0.6, 1.0])
NODE, PIPELINE = len(NODE_FEATURES), len(PIPELINE_FEATURES)
AT = {one.name: at for at, one in enumerate(NODE_FEATURES)}
PIPELINE_AT = {one.name: at for at, one in enumerate(PIPELINE_FEATURES)}
NAME = "tiny"
UNIT = 8.0
"""Cost of Σ replicas × price as features, where replicas are / 8."""


def space() -> Space:
    place = {name: at for at, name in enumerate(CONFIGURATION_FEATURES)}
    table = torch.zeros(2, 3, len(CONFIGURATION_FEATURES))
    table[..., place["memory"]] = torch.tensor([-1.0, 1.0])[:, None]
    table[..., place["price"]] = torch.from_numpy(PRICE).float()
    table[..., place["call_time"]] = torch.from_numpy(np.log(SECONDS) / np.log(100)).float()
    return Space(
        mask=torch.ones(2, 1, dtype=torch.bool),
        resource_memory=table,
        replicas=torch.from_numpy(REPLICAS / 8).float(),
        concurrencies=torch.tensor([0.1, 0.2]),
        edges=((0, 3), (3, 1), (1, 4), (4, 2)),
    )


def networks(**changes: object) -> NetworkSettings:
    small = {"width": 16, "hidden": 24, "rank": 8, "heads": 2, "dagnn_layers": 1}
    return NetworkSettings(NODE, PIPELINE, **(small | changes))  # type: ignore[arg-type]


def state_of(loads: np.ndarray) -> State:
    """Of two experts with ``loads [2]``."""
    experts, pipeline = np.zeros((2, 1, NODE), dtype=np.float32), np.zeros(PIPELINE, dtype=np.float32)
    for name in ("requests_per_s", "load_mean_5", "load_peak_5"):
        scale = NODE_FEATURES[AT[name]]
        experts[:, 0, AT[name]] = scaled_log(loads, scale.low, scale.high)
    experts[..., [AT["latency_unknown"], AT["barrier_unknown"]]] = 1.0
    pipeline[PIPELINE_AT["load_peak_5"]], pipeline[PIPELINE_AT["segments_unknown"]] = loads.max(), 1.0
    return State(
        segments=np.zeros((3, NODE), dtype=np.float32),
        experts=experts,
        pipeline=pipeline,
        present=np.zeros((2, 1, 4), dtype=np.int16),
        least_memory=np.full((2, 1, 3), 1, dtype=np.int16),
    )


def cost_of(actions: np.ndarray) -> float:
    return float((PRICE[actions[:, 0, 1]] * REPLICAS[actions[:, 0, 2]]).sum())


def p95_of(loads: np.ndarray, actions: np.ndarray) -> float:
    return float((loads * SECONDS[actions[:, 0, 1]] / REPLICAS[actions[:, 0, 2]]).sum())


def best_cost(loads: np.ndarray) -> float:
    """By trying every resource and replica count of both experts."""
    choices = list(itertools.product(range(3), range(3)))
    found = np.inf
    for one, other in itertools.product(choices, choices):
        actions = np.array([[[1, *one, 0]], [[1, *other, 0]]])
        if p95_of(loads, actions) <= 1:
            found = min(found, cost_of(actions))
    return found


@dataclass
class TinyEpisode:
    """Behind the interface of ``rl.episodes.Episode`` that training uses: each window has a new load."""

    windows_left: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self._next()

    def _next(self) -> None:
        self.loads = self.rng.choice(LOADS, size=2)

    def state(self) -> State:
        return state_of(self.loads)

    def step(self, actions: np.ndarray) -> SimpleNamespace:
        found = SimpleNamespace(executed=actions, cost=cost_of(actions), p95=p95_of(self.loads, actions))
        self.windows_left -= 1
        self._next()
        return found


def loads_of(state: State) -> np.ndarray:
    """[2] back from a state."""
    scale = NODE_FEATURES[AT["requests_per_s"]]
    encoded = state.experts[:, 0, AT["requests_per_s"]].astype(np.float64)
    return np.asarray(scale.low * (scale.high / scale.low) ** ((encoded + 1) / 2))


def window(loads: np.ndarray, actions: np.ndarray, following: State | None = None) -> WindowStep:
    """What replay keeps of a window in this world."""
    costs = [-float(PRICE[one[0, 1]] * REPLICAS[one[0, 2]]) for one in actions]
    rewards = np.array(costs, dtype=np.float32)
    return WindowStep(NAME, state_of(loads), actions.astype(np.int16), rewards, p95_of(loads, actions), following)
