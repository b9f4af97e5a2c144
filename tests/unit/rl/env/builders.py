"""A small workload, requests of it, and random choices of Φ that satisfy Eq. (2)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Configuration
from rl.agent.contract import State
from rl.episodes import Episode
from rl.features import ConfigurationIndex
from rl.reward import RewardSettings
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload

START = Configuration(memory_mb=2048, cpu_cores=2.0, gpu_share=0.0, replicas=2, concurrency=4)
REFERENCE = 0.1


@lru_cache(maxsize=4)
def workload(name: str = "bert-4") -> Workload:
    return paper_workload(name)


@lru_cache(maxsize=4)
def requests(seconds: float = 150.0, rps: float = 4.0, name: str = "bert-4") -> Requests:
    arrival_s = np.sort(np.random.default_rng(3).uniform(0, seconds, round(seconds * rps)))
    return draw_requests(workload(name), arrival_s, seed=3)


def episode(seconds: float = 150.0, seed: int = 0, rps: float = 4.0, settings: RewardSettings | None = None) -> Episode:
    return Episode(
        workload(),
        requests(seconds, rps),
        workload().initial(START),
        reference=REFERENCE,
        seconds=seconds,
        seed=seed,
        settings=settings,
    )


def drawn(configuration_index: ConfigurationIndex, state: State, rng: np.random.Generator) -> NDArray[np.int16]:
    """Actions drawn evenly on every axis, then made to satisfy Eq. (2)."""
    drawn = np.stack(
        [rng.integers(0, size, configuration_index.mask.shape) for size in configuration_index.sizes], axis=-1
    )
    return configuration_index.within(drawn, state.least_memory)
