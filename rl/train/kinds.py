"""Kinds of pipelines that are trained on: the paper's six, variants on machines without a GPU, and pipelines of one's
own on a measured machine.

A policy that has only met GPU shares does not know what to do with cores alone, nor in windows of seconds. The variants
take the GPU shares out of Φ and leave more time, as cores are slower: without that no choice would keep the SLO.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autoscaler.contract import Configuration, ConfigurationSpace
from rl.episodes import WINDOW_S, steady_cost
from rl.episodes.clips import REFERENCE_RPS
from rl.episodes.sizes import resized
from rl.profile.pipeline import measured_workload
from rl.profile.shelf import fitting, open_profile
from rl.reward import RewardSettings
from rl.routing import zipf_routing
from rl.train.errors import TrainingError
from rl.workload import TokenLengths, Workload
from rl.workload_paper import PAPER_WORKLOADS, paper_workload
from traces.provenance import file_sha256

GPU_STARTS = (
    Configuration(512, 0.0, 0.1, 1, 8),
    Configuration(512, 0.0, 0.2, 1, 8),
    Configuration(512, 0.0, 0.1, 2, 4),
)
CPU_STARTS = (Configuration(512, 4.0, 0.0, 1, 4), Configuration(512, 6.0, 0.0, 2, 4))
"""What an episode of training begins with, drawn evenly from those that Φ has: searching each clip's own takes longer
than playing it. Validation begins with the first."""
SEGMENT = Configuration(memory_mb=256, cpu_cores=6.0, gpu_share=0.0, replicas=2, concurrency=8)
"""Of the segments of one's own pipeline: enough that they are not what requests wait for."""
LENGTHS_CV = 0.6
"""Of the tokens of requests, as with the paper's workloads."""
MOST_TOKENS = 256
"""Longest request of one's own pipeline."""


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
    """Of a variant without GPU shares; None: the paper's workload as it is."""
    size: tuple[int, int] | None = None
    """MoE layers and experts of each, where they are not the paper's."""
    speed: float = 1.0
    mean_rps: tuple[float, float] | None = None

    @property
    def starts(self) -> tuple[Configuration, ...]:
        return CPU_STARTS if self.slo_s is not None else (*GPU_STARTS, *CPU_STARTS)

    def workload(self, seed: int, mean_rps: float = 0.0) -> Workload:
        space = None if self.slo_s is None else ConfigurationSpace(gpu_shares=())
        found = paper_workload(self.paper, space=space, mean_rps=mean_rps, seed=seed)
        if self.size is not None:
            found = resized(found, *self.size, seed=seed)
        return replace(found, name=self.name, slo_s=self.slo_s or found.slo_s)


@dataclass(frozen=True)
class OwnPipeline:
    """A pipeline's folder on the machine of a profile, everything on that one machine. Raises TrainingError."""

    folder: str
    slo_ms: float
    """λ on the P95; a kind for each λ that the actor is to know."""
    profile: str = ""
    """File of the profile; empty: the one of the tree that is of this pipeline."""
    cpu_scale: float = 0.0
    """Real cores a configured core; 0: as the profile was measured."""
    window_s: float = 2.0
    speed: float = 30.0
    """An hour's arrivals in 3600 / speed seconds, as ``smoe run`` replays them."""
    mean_rps: tuple[float, float] = (1.0, 8.0)
    mean_tokens: float = 24.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_rps", tuple(self.mean_rps))
        if len(self.mean_rps) != 2 or not 0 < self.mean_rps[0] <= self.mean_rps[1]:
            raise TrainingError(f"own pipeline: mean_rps is {self.mean_rps!r}; allowed: lowest and highest, above 0")
        for name, number, least in (
            ("slo_ms", self.slo_ms, 0.1), ("cpu_scale", self.cpu_scale, 0.0), ("window_s", self.window_s, 0.1),
            ("speed", self.speed, 1e-3), ("mean_tokens", self.mean_tokens, 1.0),
        ):  # fmt: skip
            if not number >= least:
                raise TrainingError(f"own pipeline: {name} is {number!r}; allowed: {least:g} or more")

    @property
    def name(self) -> str:
        scale = f"-{self.cpu_scale:g}" if self.cpu_scale else ""
        return f"{Path(self.folder).resolve().name}-{self.slo_ms:g}ms{scale}"

    @property
    def starts(self) -> tuple[Configuration, ...]:
        return CPU_STARTS

    @property
    def sha256(self) -> dict[str, str]:
        """Of manifest and profile."""
        return {"manifest": _measured(self).topology.manifest_sha256, "profile": file_sha256(_profile(self))}

    def workload(self, seed: int, mean_rps: float = 0.0) -> Workload:
        """Raises ProfileError and ``moe.errors.ManifestError``."""
        plain = _measured(self)
        counts = [len(plain.topology.experts(layer)) for layer in range(plain.topology.layers)]
        return replace(plain, name=self.name, routing=zipf_routing(counts, seed=seed))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> OwnPipeline:
        """Raises TrainingError for a key that is not known."""
        unknown = sorted(set(stored) - {one.name for one in fields(cls)})
        if unknown or not {"folder", "slo_ms"} <= set(stored):
            known = ", ".join(one.name for one in fields(cls))
            wrong = f"{unknown[0]!r} is not known" if unknown else "folder and slo_ms are needed"
            raise TrainingError(f"own pipeline: {wrong}; keys are {known}")
        return cls(**stored)


def _profile(own: OwnPipeline) -> Path:
    return Path(own.profile) if own.profile else fitting(Path(own.folder), None)


@lru_cache(maxsize=8)
def _measured(own: OwnPipeline) -> Workload:
    """With the routing that is made where none is given."""
    folder = Path(own.folder)
    return measured_workload(
        folder,
        open_profile(_profile(own), folder, None),
        TokenLengths.lognormal(own.mean_tokens, LENGTHS_CV, MOST_TOKENS),
        slo_s=own.slo_ms / 1000,
        cpu_scale=own.cpu_scale or None,
        space=ConfigurationSpace(gpu_shares=()),
        shared=True,
        segment_configuration=SEGMENT,
    )


VARIANTS = (
    PaperKind("bert-4-cores", "bert-4", slo_s=0.2),
    PaperKind("bert-6-cores-2s", "bert-6", window_s=2.0, slo_s=0.2),
)
SIZES = tuple(
    PaperKind(f"bert-8-{layers}x{experts}", "bert-8", size=(layers, experts))
    for layers, experts in ((12, 16), (12, 32), (12, 64), (6, 8), (24, 8))
)
"""What an agent of the paper's sizes is put on without training (``python -m benchmarks.zero_shot``)."""
KINDS = {kind.name: kind for kind in (*(PaperKind(name, name) for name in PAPER_WORKLOADS), *VARIANTS, *SIZES)}


@lru_cache(maxsize=32)
def reference_of(kind: Kind, reward: RewardSettings) -> float:
    """C_ref, the same for all clips of a kind."""
    rate_rps = float(np.sqrt(np.prod(kind.mean_rps))) if kind.mean_rps else REFERENCE_RPS
    return steady_cost(kind.workload(0), reward.meter, kind.window_s, rate_rps)
