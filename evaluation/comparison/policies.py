"""Policies by name for a simulated workload: the controller's own makers, with files from the evaluation's folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.checked import read_toml
from autoscaler.contract import Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.policies import Making, make_policy
from autoscaler.policy.hpa import hpa_of_windows
from autoscaler.settings import ELSEWHERE, HPA_NAMES, ControllerSettings
from evaluation.comparison.grid import Grid, Group
from simulation.workloads.custom import CLUSTER_CORE, CustomPipeline
from simulation.workloads.workload import Workload

PLANNING = frozenset(name for short in ("smoe", "last-window") for name in (short, ELSEWHERE[short]))
"""Policies that know the seconds of a call, which a profile holds."""


def limits_of(workload: Workload) -> LimitSettings:
    """Decision limits with the workload's space, memory numbers and capacity."""
    return LimitSettings(
        space=workload.space, alpha=workload.alpha, runtime_mb=workload.runtime_mb, capacity=workload.capacity
    )


def policy_of(name: str, workload: Workload, grid: Grid, group: Group) -> Policy:
    """The policy as the controller would make it. Segments are left alone, as in the paper. Raises SettingsError."""
    settings_file, pipeline = grid.settings_of(name, group), grid.custom_of(group.workload)
    table: Path | Mapping[str, Any] | None = settings_file
    if grid.speed > 1 and name in HPA_NAMES:
        table = {
            **hpa_of_windows(grid.window_s),
            **(read_toml(settings_file, "policy settings") if settings_file is not None else {}),
        }
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=Path() if pipeline is None else Path(pipeline.folder),
        policy=name,
        policy_settings=table,
        plan=grid.plan_of(name, group),
        policy_seed=group.seed,
        interval_s=grid.window_s,
        slo_s=workload.slo_s,
        min_replicas=workload.space.replicas_min,
        max_replicas=workload.space.replicas_max,
        scale_segments=False,
        space=workload.space,
        alpha=workload.alpha,
        runtime_mb=workload.runtime_mb,
    )
    parts = (settings, workload.topology, limits_of(workload), workload.prices)
    if pipeline is None or name not in PLANNING:
        return make_policy(Making(*parts))
    return make_policy(MakingByProfile(*parts, pipeline, group.tokens))


@dataclass(frozen=True)
class MakingByProfile(Making):
    """Where the policy's settings name neither profile nor workload, it plans with the profile that is simulated."""

    custom: CustomPipeline
    tokens: int
    """Mean tokens of a request; 0: the pipeline's own."""

    def table(self) -> Mapping[str, Any]:
        stored = super().table()
        if stored.get("profile") or stored.get("workload"):
            return stored
        custom = self.custom
        defaults = {"profile": str(custom.profile_file), "cpu_scale": custom.cpu_scale, "other_machine": True}
        if custom.cluster:
            defaults |= {"cluster": True, "cpu_scale": custom.cpu_scale or CLUSTER_CORE}
        return {**defaults, "mean_tokens": self.tokens or round(custom.mean_tokens), **stored}
