"""Which episodes are trained on: clips of the train set (model choice: validation), never of the test set.

Seeds of training and validation are far from those that evaluations use, since a seed also chooses routing and lengths.
Arrivals are those of :mod:`evaluation.comparison.arrivals`: hours of the public traces where they are there, else
synthetic ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Burst, Configuration
from autoscaler.prices import Meter
from evaluation.bound.bounds import deterministic
from evaluation.bound.loads import WindowLoad, expected_tables, windows
from evaluation.bound.oracle import cheapest_feasible, configurations
from evaluation.bound.physics import Physics
from evaluation.bound.walls import Problem
from evaluation.bound.window import enclose
from evaluation.comparison.arrivals import arrivals
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.quickest import quickest_p95_s, walled
from rl.episodes.episode import WINDOW_S, Episode
from rl.reward import RewardSettings
from simulation.arrays import Ints
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World
from traces.splits import Split
from traces.traffic import MOST_SLOW_RPS, REPLAYED_PATTERNS

SEEDS: Mapping[Split, int] = {"train": 10_000, "validation": 20_000}
"""What is added to a clip's seed."""
REFERENCE_RPS, REFERENCE_S = 20.0, 30.0
WARM_UP = 4
"""Windows that an operator profiles on before the start, as in the evaluation."""


@dataclass(frozen=True)
class Clip:
    """One episode's arrivals and work, by name; :func:`work_of` makes it."""

    workload: str
    pattern: str
    seed: int
    split: Split = "train"
    mean_rps: float = 20.0
    tokens: int = 0
    """Mean tokens of a request; 0: the workload's own."""
    seconds: float = 3600.0
    window_s: float = WINDOW_S
    speed: float = 1.0
    """The trace's time is divided by it; ``seconds``, ``window_s`` and ``mean_rps`` are of what is simulated."""
    world: World = "unlimited"
    """Cluster (:mod:`simulation.workloads.worlds`); of no effect on a pipeline that runs on one machine."""

    def __post_init__(self) -> None:
        if self.split not in SEEDS:
            raise ValueError(f"clips are of {' and '.join(SEEDS)}, not of {self.split!r}")


def training_clips(
    workloads: Sequence[str],
    patterns: Sequence[str] = REPLAYED_PATTERNS,
    *,
    seed: int,
    split: Split = "train",
    mean_rps: tuple[float, float] = (5.0, 40.0),
    tokens: Sequence[int] = (0,),
    seconds: float = 3600.0,
    window_s: float = WINDOW_S,
    speed: float = 1.0,
    world: World = "unlimited",
) -> Iterator[Clip]:
    """Clips without end: workloads in turn (in a new order each round), pattern, size and rate (logarithmic between
    ``mean_rps``) drawn by ``seed``. Slow clips are at most as busy as slow hours are (:mod:`traces.traffic`)."""
    rng = np.random.default_rng(seed)
    number = 0
    while True:
        for name in rng.permutation(list(workloads)):
            share = rng.uniform()
            size, pattern = int(rng.choice(list(tokens))), str(rng.choice(list(patterns)))
            most = MOST_SLOW_RPS[split] * speed if pattern == "slow" else np.inf
            low, high = np.log(np.minimum(mean_rps, most))
            rate = float(np.exp(low + share * (high - low)))
            draw_seed = int(hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()[:6], 16)
            rate, name = round(rate, 3), str(name)
            yield Clip(name, pattern, draw_seed, split, rate, size, seconds, window_s, speed, world)
            number += 1


@dataclass(frozen=True, eq=False)
class Work:
    """What an episode is simulated on, as the evaluation makes it for a group."""

    clip: Clip
    seed: int
    """Seed of routing, lengths and scatter."""
    workload: Workload
    requests: Requests
    seconds: float
    """Whole windows; less than asked for where the trace is shorter."""


def in_world_of(workload: Workload, world: World, relative_slo: float | None) -> Workload:
    """``workload`` with the Φ that it has in ``world`` and, where ``relative_slo`` is given, so many times the P95 of
    steady requests with unlimited capacity as λ: one for all clips, since states and C_ref are made with it.

    Walls and segments come with a clip's requests (:func:`work_of`). Raises EvaluationError.
    """
    if world == "cores-only":
        workload = replace(workload, space=replace(workload.space, gpu_shares=()))
    if relative_slo is None:
        return workload
    return replace(workload, slo_s=relative_slo * quickest_p95_s(workload, _steady(workload, REFERENCE_RPS), seed=0))


def _steady(workload: Workload, rate_rps: float) -> Requests:
    """:data:`REFERENCE_S` of requests at even distances."""
    arrivals_s = (np.arange(round(rate_rps * REFERENCE_S)) + 0.5) / rate_rps
    return draw_requests(workload, arrivals_s, seed=0, source=f"steady {rate_rps:g} requests/s")


@lru_cache(maxsize=16)
def work_of(clip: Clip, data: Path | None = None, workload: Workload | None = None) -> Work:
    """Arrivals, lengths and routing of a clip, in its world. ``data``: folder of the public traces, by default the
    usual one; ``workload``: instead of the paper's of the clip's name, with its own lengths and routing.

    Raises EvaluationError (also where the world has no room for the clip's segments), TraceError, SimulationError.
    """
    seed = SEEDS[clip.split] + clip.seed
    grid = Grid(
        workloads=PAPER_WORKLOADS,
        patterns=(clip.pattern,),
        tokens=(clip.tokens,),
        policies=("static",),
        seeds=(seed,),
        window_s=clip.window_s,
        seconds=clip.seconds,
        mean_rps=clip.mean_rps,
        speed=clip.speed,
        warm_up_windows=1,
        data=data,
        split=clip.split,
    )
    drawn = arrivals(grid, Group(clip.workload, clip.pattern, clip.tokens, seed))
    if workload is None:
        tokens = clip.tokens or None
        workload = paper_workload(clip.workload, mean_tokens=tokens, mean_rps=clip.mean_rps, seed=seed)
    requests = draw_requests(workload, drawn.arrival_s, seed=seed, source=drawn.source)
    if workload.host is None:
        workload = walled(workload, requests, clip.world, None, seed)
    return Work(clip, seed, workload, requests, drawn.seconds)


def start_of(work: Work, cache: Path | None = None) -> dict[str, Configuration]:
    """Start as in the evaluation: the cheapest configurations found that keep the SLO in the first windows with
    requests (:data:`WARM_UP` of them), or where none were found the fastest by the queueing model.

    Kept in ``cache`` (a folder), as the search takes seconds. Raises EvaluationError where there is no request.
    """
    path = None if cache is None else cache / f"start-{work_key(work)}.npz"
    physics = Physics(work.workload, work.requests.most_tokens)
    if path is not None and path.is_file():
        with np.load(path) as stored:
            flat = stored["numbers"]
        sizes = np.cumsum([len(layer) for layer in physics.layers])[:-1]
        numbers = tuple(np.split(flat, sizes))
    else:
        numbers = _profiled(work, physics)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_npz(path, numbers=np.concatenate(numbers))
    chosen = configurations(physics, numbers)
    return work.workload.initial(next(iter(chosen.values()))) | chosen


def _profiled(work: Work, physics: Physics) -> tuple[Ints, ...]:
    stretch_s = WARM_UP * work.clip.window_s
    stretches = windows(physics, work.requests, stretch_s, float(work.requests.arrival_s[-1]) + stretch_s)
    load = next((stretch for stretch in stretches if stretch.count), None)
    if load is None:
        raise EvaluationError(f"{work.requests.source}: no request to profile with; say what to start with")
    choice = cheapest_feasible(load, "provisioned", work.seed)
    return choice.numbers if choice is not None else fastest(load)


def fastest(load: WindowLoad) -> tuple[Ints, ...]:
    """Per layer [experts]: numbers of the choice with the least sum of latencies, by the queueing model; among those
    of equal latency the cheapest. Raises EvaluationError where nothing serves the load."""
    tables, _ = expected_tables(load, "provisioned")
    enclosure = Problem(tables, load.physics.space_arrays, load.physics.workload.expert_room).quickest()
    if not enclosure.feasible:
        raise EvaluationError(f"{load.requests.source}: no configuration serves the load of its first windows")
    return enclosure.numbers


def save_npz(path: Path, **arrays: NDArray[np.generic]) -> None:
    """Written next to its place and moved there, so that two processes may do the same at once."""
    part = path.with_name(f"{path.stem}-{os.getpid()}.part.npz")
    np.savez_compressed(part, **arrays)  # type: ignore[arg-type]
    part.replace(path)


def work_key(work: Work) -> str:
    """Hash of all that a search over this work depends on."""
    workload = work.workload
    fields_of_work = (
        workload.name, workload.topology.manifest_sha256, workload.slo_s, workload.space, workload.prices,
        workload.latency.name, workload.runtime_mb, workload.alpha, workload.memory_mb_per_core,
        workload.segment_configuration, work.seed,
    )  # fmt: skip
    return hashlib.sha256(f"{fields_of_work} {work.requests.sha256}".encode()).hexdigest()[:24]


def paper_cost(clip: Clip, meter: Meter) -> float:
    """C_ref of one of the paper's workloads, see :func:`steady_cost`: the same for all its clips of one window."""
    return steady_cost(_plain(clip.workload, clip.tokens), meter, clip.window_s)


@lru_cache(maxsize=64)
def _plain(name: str, tokens: int) -> Workload:
    return paper_workload(name, mean_tokens=tokens or None)


@lru_cache(maxsize=64)
def steady_cost(workload: Workload, meter: Meter, window_s: float = WINDOW_S, rate_rps: float = REFERENCE_RPS) -> float:
    """What a window costs at a steady rate by the queueing model's optimum (where λ cannot be met, by its fastest
    choice)."""
    requests = _steady(workload, rate_rps)
    load = WindowLoad(Physics(workload, requests.most_tokens), requests, 0, requests.arrival_s.size, REFERENCE_S)
    choice = deterministic(load, meter)
    if not choice.feasible:
        choice = enclose(expected_tables(load, meter)[0], load.physics.space_arrays, choice.fastest_s * (1 + 1e-9))
    return choice.upper * window_s / REFERENCE_S


def episode_of(
    clip: Clip,
    *,
    settings: RewardSettings | None = None,
    start: Mapping[str, Configuration] | None = None,
    cache: Path | None = None,
    data: Path | None = None,
    workload: Workload | None = None,
    reference: float | None = None,
    burst: Burst | None = None,
) -> Episode:
    """The episode of a clip, from ``start`` or from :func:`start_of`, which uses ``cache``; ``data`` and ``workload``
    as in :func:`work_of`; ``reference``: C_ref, by default :func:`steady_cost`; ``burst``: standbys of every expert.
    Raises as these do."""
    work, settings = work_of(clip, data, workload), settings or RewardSettings()
    meter = settings.meter
    if reference is None:
        reference = steady_cost(work.workload, meter, clip.window_s) if workload else paper_cost(clip, meter)
    return Episode(
        work.workload,
        work.requests,
        start if start is not None else start_of(work, cache),
        reference=reference,
        seconds=work.seconds,
        window_s=clip.window_s,
        seed=work.seed,
        settings=settings,
        burst=burst,
    )
