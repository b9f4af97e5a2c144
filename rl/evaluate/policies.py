"""Policies by name for a simulated workload: the controller's own makers, with files from the evaluation's folders."""

from __future__ import annotations

from pathlib import Path

from autoscaler.contract import Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings, validate
from rl.evaluate.grid import Grid
from rl.workload import Workload


def limits_of(workload: Workload) -> LimitSettings:
    """Decision limits with the workload's space and memory numbers."""
    return LimitSettings(space=workload.space, alpha=workload.alpha, runtime_mb=workload.runtime_mb)


def policy_of(name: str, workload: Workload, grid: Grid, seed: int) -> Policy:
    """The policy as the controller would make it. Segments are left alone, as in the paper. Raises SettingsError."""
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=Path(),
        policy=name,
        policy_settings=grid.settings_of(name),
        plan=grid.plan_of(name, workload.name),
        policy_seed=seed,
        interval_s=grid.window_s,
        slo_s=workload.slo_s,
        min_replicas=workload.space.replicas_min,
        max_replicas=workload.space.replicas_max,
        scale_segments=False,
        space=workload.space,
        alpha=workload.alpha,
        runtime_mb=workload.runtime_mb,
    )
    validate(settings)
    return make_policy(Making(settings, workload.topology, limits_of(workload), workload.prices))
