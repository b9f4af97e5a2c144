"""A pipeline of one's own, profiled: what training, evaluation, bound and search make of it.

By default everything runs on the one machine that was measured, ingress and all. Windows are of seconds, and an hour of
a trace is replayed in two minutes, as ``smoe run`` does it; rates are those that such a machine can serve. On the
modelled cluster (:func:`on_cluster`) replicas have their cores or GPU shares to themselves, in the cluster's own time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from autoscaler.contract import Configuration, ConfigurationSpace
from autoscaler.prices import PriceSheet, load_prices
from moe.manifest import load as load_manifest
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import nearest, open_profile
from simulation.profiles.model.pipeline import clustered_workload, measured_workload
from simulation.workloads.paper import LIFECYCLE, PAPER_PRICES, PAPER_WORKLOADS, segments_at
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import TokenLengths, Workload
from simulation.workloads.worlds import World
from traces.provenance import file_sha256

GPU_STARTS = (
    Configuration(512, 0.0, 0.1, 1, 8),
    Configuration(512, 0.0, 0.2, 1, 8),
    Configuration(512, 0.0, 0.1, 2, 4),
)
"""What an episode of training begins with (:data:`CPU_STARTS`, too), drawn evenly from those that Φ has: searching each
clip's own takes longer than simulating it. Validation begins with the first."""
CPU_STARTS = (Configuration(512, 4.0, 0.0, 1, 4), Configuration(512, 6.0, 0.0, 2, 4))
"""What an episode of training begins with where Φ has no GPU shares."""
SEGMENT = Configuration(memory_mb=256, cpu_cores=6.0, gpu_share=0.0, replicas=2, concurrency=8)
"""Replicas of the segments: enough that they are not what requests wait for."""
LENGTHS_CV = 0.6
"""Spread of the tokens of requests, as with the paper's workloads."""
MOST_TOKENS = 256
"""Longest request."""
HOUR_S = 3600.0
CLUSTER_CORE = 1.0
"""Real cores a configured core of the modelled cluster."""


class CustomPipelineError(ValueError):
    """A setting of a custom pipeline that cannot be; the message names which and what is allowed."""


@dataclass(frozen=True)
class CustomPipeline:
    """A pipeline's folder on the machine of a profile. Raises CustomPipelineError."""

    folder: str
    slo_ms: float
    """λ on the P95; in training a kind for each λ that the actor is to know."""
    profile: str = ""
    """File of the profile; empty: the one of the tree that is of this pipeline, and of this machine if there is one."""
    cpu_scale: float = 0.0
    """Real cores a configured core; 0: as the profile was measured."""
    window_s: float = 2.0
    speed: float = 30.0
    """An hour's arrivals in 3600 / speed seconds, as ``smoe run`` replays them."""
    mean_rps: tuple[float, float] = (1.0, 8.0)
    """Lowest and highest mean rate of a clip of training."""
    mean_tokens: float = 24.0
    cluster: bool = False
    """On the modelled cluster, GPU shares and all (:mod:`simulation.profiles.model.cluster`), and not on the profile's
    machine."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_rps", tuple(self.mean_rps))
        if len(self.mean_rps) != 2 or not 0 < self.mean_rps[0] <= self.mean_rps[1]:
            raise CustomPipelineError(
                f"custom pipeline: mean_rps is {self.mean_rps!r}; allowed: lowest and highest, above 0"
            )
        for name, number, least in (
            ("slo_ms", self.slo_ms, 0.1), ("cpu_scale", self.cpu_scale, 0.0), ("window_s", self.window_s, 0.1),
            ("speed", self.speed, 1e-3), ("mean_tokens", self.mean_tokens, 1.0),
        ):  # fmt: skip
            if not number >= least:
                raise CustomPipelineError(f"custom pipeline: {name} is {number!r}; allowed: {least:g} or more")
        if self.mean_tokens > MOST_TOKENS:
            raise CustomPipelineError(
                f"custom pipeline: mean_tokens is {self.mean_tokens!r}; its requests have {MOST_TOKENS} tokens at most"
            )

    @property
    def name(self) -> str:
        """As a kind of training: folder, λ and, where given, the cores' scale."""
        scale = f"-{self.cpu_scale:g}" if self.cpu_scale else ""
        where = "-cluster" if self.cluster else ""
        return f"{Path(self.folder).resolve().name}-{self.slo_ms:g}ms{scale}{where}"

    @property
    def pipeline(self) -> str:
        """The manifest's name, under which it stands next to the paper's workloads. Raises CustomPipelineError,
        ``moe.errors.ManifestError``."""
        name = _pipeline_of(self.folder)
        if name in PAPER_WORKLOADS:
            raise CustomPipelineError(
                f"the pipeline in {self.folder} is called {name}, as one of the paper's workloads"
            )
        return name

    @property
    def starts(self) -> tuple[Configuration, ...]:
        return (*GPU_STARTS, *CPU_STARTS) if self.cluster else CPU_STARTS

    @property
    def world(self) -> World:
        """It runs on the machine of its profile, or on a cluster with room."""
        return "unlimited"

    @property
    def prices(self) -> PriceSheet:
        """Description of where it runs."""
        return load_prices(PAPER_PRICES) if self.cluster else load_prices()

    @property
    def rate_rps(self) -> float:
        """Mean rate of what stands for all loads: the middle of ``mean_rps``, on a logarithmic scale."""
        return float((self.mean_rps[0] * self.mean_rps[1]) ** 0.5)

    @property
    def profile_file(self) -> Path:
        """Raises ProfileMismatchError where no profile of the tree fits."""
        return Path(self.profile) if self.profile else _nearest(self.folder)

    @property
    def sha256(self) -> dict[str, str]:
        """Hash of manifest and profile. Raises as :meth:`workload` does."""
        return {"manifest": _measured(self).topology.manifest_sha256, "profile": file_sha256(self.profile_file)}

    def workload(self, seed: int, mean_rps: float = 0.0) -> Workload:
        """As a kind of training, with the routing of ``seed``. Raises ProfileError and ``moe.errors.ManifestError``."""
        return replace(self.served(seed, mean_rps=mean_rps), name=self.name)

    def served(self, seed: int | None = None, tokens: int = 0, mean_rps: float = 0.0) -> Workload:
        """Under the manifest's name, with the routing of ``seed`` (None: as made where none is given) and requests of
        ``tokens`` in the mean (0: its own); on the cluster with segments for a load of ``mean_rps``. Raises as
        :meth:`workload`, and CustomPipelineError."""
        plain = _measured(replace(self, mean_tokens=float(tokens)) if tokens else self)
        if self.cluster:
            plain = replace(plain, segment_configuration=segments_at(mean_rps))
        if seed is None:
            return plain
        counts = [len(plain.topology.experts(layer)) for layer in range(plain.topology.layers)]
        return replace(plain, routing=zipf_routing(counts, seed=seed))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> CustomPipeline:
        """Raises CustomPipelineError for a key that is not known."""
        unknown = sorted(set(stored) - {one.name for one in fields(cls)})
        if unknown or not {"folder", "slo_ms"} <= set(stored):
            keys = ", ".join(one.name for one in fields(cls))
            wrong = f"{unknown[0]!r} is not known" if unknown else "folder and slo_ms are needed"
            raise CustomPipelineError(f"custom pipeline: {wrong}; keys are {keys}")
        return cls(**stored)


def on_cluster(pipeline: CustomPipeline) -> CustomPipeline:
    """The same on the modelled cluster, with the windows, speed and rates of the paper's workloads."""
    return replace(pipeline, cluster=True, window_s=30.0, speed=1.0, mean_rps=(5.0, 40.0))


@lru_cache(maxsize=8)
def _pipeline_of(folder: str) -> str:
    return load_manifest(Path(folder), verify=False).name


@lru_cache(maxsize=8)
def _nearest(folder: str) -> Path:
    return nearest(Path(folder), this_machine())


@lru_cache(maxsize=8)
def _measured(pipeline: CustomPipeline) -> Workload:
    """With the routing that is made where none is given."""
    folder = Path(pipeline.folder)
    profile = open_profile(pipeline.profile_file, folder, None)
    tokens = TokenLengths.lognormal(pipeline.mean_tokens, LENGTHS_CV, MOST_TOKENS)
    if pipeline.cluster:
        return clustered_workload(
            folder,
            profile,
            tokens,
            slo_s=pipeline.slo_ms / 1000,
            changes=LIFECYCLE,
            prices=pipeline.prices,
            cpu_scale=pipeline.cpu_scale or CLUSTER_CORE,
        )
    return measured_workload(
        folder,
        profile,
        tokens,
        slo_s=pipeline.slo_ms / 1000,
        cpu_scale=pipeline.cpu_scale or None,
        space=ConfigurationSpace(gpu_shares=()),
        shared=True,
        segment_configuration=SEGMENT,
    )
