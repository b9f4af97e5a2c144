"""Kinds of pipelines that are trained on: the paper's six, variants on machines without a GPU, and pipelines of one's
own on a measured machine (:mod:`simulation.workloads.custom`).

A policy that has only met GPU shares does not know what to do with cores alone, nor in windows of seconds. The variants
take the GPU shares out of Φ and leave more time, as cores are slower: without that no choice would keep the SLO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from autoscaler.contract import Burst, Configuration, ConfigurationSpace
from evaluation.uniform import fits
from rl.episodes import WINDOW_S, in_world_of, steady_cost
from rl.episodes.clips import REFERENCE_RPS
from rl.episodes.sizes import resized
from rl.reward import RewardSettings
from simulation.workloads.custom import CPU_STARTS, GPU_STARTS
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World


class Kind(Protocol):
    """One kind of pipeline, known by its name."""

    @property
    def name(self) -> str: ...

    @property
    def window_s(self) -> float: ...

    @property
    def speed(self) -> float:
        """By how much the traces' time is compressed."""
        ...

    @property
    def mean_rps(self) -> tuple[float, float] | None:
        """Lowest and highest mean rate of a clip; None: the run's."""
        ...

    @property
    def world(self) -> World: ...

    @property
    def starts(self) -> tuple[Configuration, ...]: ...

    def workload(self, seed: int, mean_rps: float = 0.0) -> Workload:
        """With the routing of ``seed``, and segments for a load of ``mean_rps``; all else is the same for all seeds."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class PaperKind:
    """One of the paper's workloads, or a variant of it."""

    name: str
    paper: str
    window_s: float = WINDOW_S
    slo_s: float | None = None
    """SLO of a variant without GPU shares; None: the paper's workload as it is."""
    size: tuple[int, int] | None = None
    """MoE layers and experts of each, where they are not the paper's."""
    speed: float = 1.0
    """Where it is above 1, cold starts, resizes and drains are as much quicker: windows, load within them and what a
    change takes stay as they are to each other, and a window has that many times fewer requests to simulate."""
    mean_rps: tuple[float, float] | None = None
    world: World = "unlimited"
    relative_slo: float | None = None
    """λ as so many times the P95 of steady requests with unlimited capacity."""

    @property
    def starts(self) -> tuple[Configuration, ...]:
        cores = self.slo_s is not None or self.world == "cores-only"
        return CPU_STARTS if cores else (*GPU_STARTS, *CPU_STARTS)

    def workload(self, seed: int, mean_rps: float = 0.0) -> Workload:
        space = None if self.slo_s is None else ConfigurationSpace(gpu_shares=())
        workload = paper_workload(self.paper, space=space, mean_rps=mean_rps, seed=seed)
        if self.size is not None:
            workload = resized(workload, *self.size, seed=seed)
        workload = replace(
            workload,
            name=self.name,
            slo_s=self.slo_s or workload.slo_s,
            lifecycle=workload.lifecycle.quickened(self.speed),
        )
        slo_s = _slo_s(self) if self.relative_slo else workload.slo_s
        return replace(in_world_of(workload, self.world, None), slo_s=slo_s)


VARIANTS = (
    PaperKind("bert-4-cores", "bert-4", slo_s=0.2),
    PaperKind("bert-6-cores-2s", "bert-6", window_s=2.0, slo_s=0.2),
)
SIZES = tuple(
    PaperKind(f"bert-8-{layers}x{experts}", "bert-8", size=(layers, experts))
    for layers, experts in ((12, 16), (12, 32), (12, 64), (6, 8), (24, 8))
)
"""What an agent of the paper's sizes is put on without training (``python -m benchmarks.zero_shot``)."""
QUICK = tuple(
    PaperKind(f"{name}-quick", name, window_s=6.0, speed=5.0, mean_rps=(20.0, 500.0)) for name in PAPER_WORKLOADS
)
"""The paper's workloads at loads at which calls wait, in a fifth of the time."""
KINDS = {kind.name: kind for kind in (*(PaperKind(name, name) for name in PAPER_WORKLOADS), *VARIANTS, *SIZES, *QUICK)}


def starts_within(kind: Kind, workload: Workload, burst: Burst | None = None) -> list[Configuration]:
    """Those of the kind's starts for which, with standbys of ``burst``, the cluster has room in every expert; where it
    has for none, one core in their place."""
    starts = [start for start in kind.starts if fits(workload, replace(start, burst=burst))]
    least = replace(kind.starts[-1], cpu_cores=1.0, gpu_share=0.0, replicas=1)
    return starts or [start for start in (least,) if fits(workload, replace(start, burst=burst))]


@lru_cache(maxsize=64)
def _slo_s(kind: PaperKind) -> float:
    """The relative λ, the same for all seeds."""
    return in_world_of(replace(kind, relative_slo=None).workload(0), kind.world, kind.relative_slo).slo_s


@lru_cache(maxsize=32)
def reference_of(kind: Kind, reward: RewardSettings) -> float:
    """C_ref, the same for all clips of a kind."""
    rate_rps = float(np.sqrt(np.prod(kind.mean_rps))) if kind.mean_rps else REFERENCE_RPS
    return steady_cost(kind.workload(0), reward.meter, kind.window_s, rate_rps)
