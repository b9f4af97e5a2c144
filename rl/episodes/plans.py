"""What a clairvoyant and a reactive optimiser would do in each window of a clip: teachers for an optional warm start.

*Clairvoyant*: the cheapest choice found that keeps λ in the window to come, by simulation from an empty pipeline
(``evaluation.bound.oracle``); feasible for that window alone, not optimal. *Last window*: the queueing model's optimum
for the window that has gone, on ``HEADROOM`` of the budget, as the policy last-window plans. Both know the latency
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Topology
from autoscaler.prices import Meter
from evaluation.bound.bounds import deterministic
from evaluation.bound.last_window import LastWindowSettings
from evaluation.bound.loads import WindowLoad, windows
from evaluation.bound.oracle import cheapest_feasible
from evaluation.bound.physics import Physics
from rl.episodes.clips import Work, save_npz, work_key
from simulation.arrays import Ints

HEADROOM = LastWindowSettings.headroom
NONE = -1


@dataclass(frozen=True, eq=False)
class Plans:
    """[windows, n, K, 4] int16 positions on the axes of Φ; -1 where there is no plan (no request, or nothing found),
    zeros for padding. Window w is the w-th of the clip; of ``last_window`` the first has none."""

    clairvoyant: NDArray[np.int16]
    last_window: NDArray[np.int16]


def plans_of(work: Work, meter: Meter = "provisioned", *, count: int | None = None, cache: Path | None = None) -> Plans:
    """Plans of the first ``count`` windows (all by default). Kept in ``cache`` (a folder): the search takes about a
    second a window."""
    whole = round(work.seconds / work.clip.window_s)
    count = whole if count is None else min(count, whole)
    path = None if cache is None else cache / f"plans-{work_key(work)}-{meter}-{count}.npz"
    if path is not None and path.is_file():
        with np.load(path) as stored:
            return Plans(stored["clairvoyant"], stored["last_window"])
    physics = Physics(work.workload, work.requests.most_tokens)
    loads = list(windows(physics, work.requests, work.clip.window_s, count * work.clip.window_s))
    topology, space = work.workload.topology, work.workload.space
    axes = (len(space.memory_sizes_mb), len(space.resources), len(space.replica_counts), len(space.concurrencies))
    plans = Plans(
        np.stack([_positions(_ahead(load, meter, work.seed), topology, axes) for load in loads]),
        np.stack([_positions(numbers, topology, axes) for numbers in (None, *(_back(x, meter) for x in loads[:-1]))]),
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_npz(path, clairvoyant=plans.clairvoyant, last_window=plans.last_window)
    return plans


def _ahead(load: WindowLoad, meter: Meter, seed: int) -> tuple[Ints, ...] | None:
    choice = cheapest_feasible(load, meter, seed) if load.count else None
    return None if choice is None else choice.numbers


def _back(load: WindowLoad, meter: Meter) -> tuple[Ints, ...] | None:
    choice = deterministic(load, meter, HEADROOM) if load.count else None
    return choice.numbers if choice is not None and choice.feasible else None


def _positions(numbers: tuple[Ints, ...] | None, topology: Topology, axes: tuple[int, ...]) -> NDArray[np.int16]:
    """[n, K, 4] of configuration numbers by layer."""
    width = max(len(topology.experts(layer)) for layer in range(topology.layers))
    positions = np.zeros((topology.layers, width, 4), dtype=np.int16)
    for layer in range(topology.layers):
        size = len(topology.experts(layer))
        positions[layer, :size] = NONE if numbers is None else np.stack(np.unravel_index(numbers[layer], axes), axis=-1)
    return positions
