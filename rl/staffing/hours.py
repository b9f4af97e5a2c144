"""Hours that the staffing policy is trained and judged on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.policies import limits_of
from rl.episodes import Episode, Work, training_clips, work_of
from rl.episodes.clips import SEEDS
from rl.features import calls_of
from rl.reward import RewardSettings
from rl.staffing.features import StaffingEncoder
from rl.train.errors import TrainingError
from rl.train.training_workloads import PaperKind, reference_of, starts_within
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World
from traces.splits import Split
from traces.traffic import REPLAYED_PATTERNS

MOST_TRIED = 60
"""Hours that are looked at for one that the cluster has room for."""


@dataclass(frozen=True)
class HourSettings:
    """Which hours; one pipeline, so that states have one shape."""

    workload: str = "bert-4"
    world: World = "cores-only"
    relative_slo: float = 5.0
    """λ as so many times the P95 of steady requests with unlimited capacity."""
    mean_rps: tuple[float, float] = (10.0, 100.0)
    patterns: tuple[str, ...] = REPLAYED_PATTERNS
    seconds: float = 900.0
    reward: RewardSettings = field(default_factory=RewardSettings)

    @property
    def kind(self) -> PaperKind:
        return _kind(self.workload, self.world, self.relative_slo)


@lru_cache
def _kind(workload: str, world: World, relative_slo: float) -> PaperKind:
    return PaperKind(workload, workload, world=world, relative_slo=relative_slo)


def works(
    settings: HourSettings, split: Split, seed: int, data: Path | None, look: Callable[[], object] = lambda: None
) -> Iterator[Work]:
    """Episodes of hours that the cluster can serve, without end; ``look`` is called before each that is tried. Raises
    TrainingError where it serves none of many."""
    refused, kind = 0, settings.kind
    clips = training_clips(
        (settings.workload,), settings.patterns, seed=seed, split=split, mean_rps=settings.mean_rps,
        seconds=settings.seconds, world=settings.world,
    )  # fmt: skip
    for clip in clips:
        look()
        try:
            work = work_of(clip, data, kind.workload(SEEDS[clip.split] + clip.seed, clip.mean_rps))
        except EvaluationError:
            work = None
        if work is not None and work.requests.arrival_s.size and starts_within(kind, work.workload):
            refused = 0
            yield work
            continue
        refused += 1
        if refused == MOST_TRIED:
            raise TrainingError(f"the cluster serves none of {MOST_TRIED} hours at {settings.mean_rps} requests/s")


def encoder_of(workload: Workload) -> StaffingEncoder:
    """As simulations and the bound decide it: with the workload's own Φ, α, prices and λ."""
    limits, calls = limits_of(workload), calls_of(workload)
    return StaffingEncoder(workload.topology, limits, workload.prices, workload.slo_s, calls)


def episode(settings: HourSettings, work: Work) -> Episode:
    """From the least start that the cluster has room for."""
    start = work.workload.initial(starts_within(settings.kind, work.workload)[0])
    return Episode(
        work.workload,
        work.requests,
        start,
        reference=reference_of(settings.kind, settings.reward),
        seconds=work.seconds,
        window_s=work.clip.window_s,
        seed=work.seed,
        settings=settings.reward,
        encoder=encoder_of,
    )


def in_turn(settings: HourSettings, hours: Sequence[Work], seed: int | tuple[int, ...]) -> Iterator[Episode]:
    """Episodes of ``hours`` without end, in a new order each time round."""
    rng = np.random.default_rng(seed)
    while True:
        for place in rng.permutation(len(hours)):
            yield episode(settings, hours[place])
