"""Kinds of pipelines that are trained on: the paper's six, and variants on machines without a GPU.

A policy that has only met GPU shares does not know what to do with cores alone, nor in windows of seconds. The variants
take the GPU shares out of Φ and leave more time, as cores are slower: without that no choice would keep the SLO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.contract import ConfigurationSpace
from rl.episodes import WINDOW_S
from rl.workload import Workload
from rl.workload_paper import PAPER_WORKLOADS, paper_workload


@dataclass(frozen=True)
class Kind:
    """One kind of pipeline; ``paper`` is the workload it is or comes from."""

    name: str
    paper: str
    window_s: float = WINDOW_S
    slo_s: float | None = None
    """Of a variant without GPU shares; None: the paper's workload as it is."""

    def workload(self, seed: int) -> Workload | None:
        """A variant's workload with the routing of ``seed``; None for the paper's own."""
        if self.slo_s is None:
            return None
        space = ConfigurationSpace(gpu_shares=())
        return replace(paper_workload(self.paper, space=space, seed=seed), name=self.name, slo_s=self.slo_s)


VARIANTS = (Kind("bert-4-cores", "bert-4", slo_s=0.2), Kind("bert-6-cores-2s", "bert-6", window_s=2.0, slo_s=0.2))
KINDS = {kind.name: kind for kind in (*(Kind(name, name) for name in PAPER_WORKLOADS), *VARIANTS)}
