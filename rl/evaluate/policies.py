"""Policies by name for a simulated workload: the controller's own makers, with files from the evaluation's folders."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoscaler.contract import Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.settings import HPA_NAMES, ControllerSettings, validate
from rl.evaluate.grid import Grid, Group
from rl.workload import Workload

HPA_KEYS = ("cpu_target", "concurrency_target", "tolerance", "up_stabilisation_s", "down_stabilisation_s", "period_s")


def limits_of(workload: Workload) -> LimitSettings:
    """Decision limits with the workload's space and memory numbers."""
    return LimitSettings(space=workload.space, alpha=workload.alpha, runtime_mb=workload.runtime_mb)


def policy_of(name: str, workload: Workload, grid: Grid, group: Group) -> Policy:
    """The policy as the controller would make it. Segments are left alone, as in the paper. Raises SettingsError."""
    own = grid.settings_of(name, group)
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=Path(),
        policy=name,
        policy_settings=None if name in HPA_NAMES else own,
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
    if name in HPA_NAMES and own is not None:
        settings = replace(settings, **hpa_table(own))
    validate(settings)
    return make_policy(Making(settings, workload.topology, limits_of(workload), workload.prices))


def hpa_table(path: Path) -> dict[str, Any]:
    """HPA's settings from a TOML file; elsewhere they are among the controller's. Raises SettingsError."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"policy settings {path} cannot be read: {error}") from error
    for key, value in found.items():
        if key not in HPA_KEYS:
            raise SettingsError(f"policy settings {path}: {key!r} is not known; the keys are {', '.join(HPA_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"policy settings {path}: {key} is {value!r}; allowed is a number")
    return found
