"""Policies by name for a simulated workload: the controller's own makers, with files from the evaluation's folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoscaler.checked import read_toml
from autoscaler.contract import Burst, Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.policies import BURST_TABLE, Making, make_policy
from autoscaler.policy.hpa import hpa_of_windows
from autoscaler.settings import ELSEWHERE, HPA_NAMES, ControllerSettings
from autoscaler.stored_deployment import load_plan
from evaluation.comparison.grid import Grid, Group, file_name, without_burst
from platform_words.memory import RuntimeMemory
from simulation.workloads.custom import CLUSTER_CORE, CustomPipeline
from simulation.workloads.workload import Workload

PLANNING = frozenset(
    name for short in ("smoe", "last-window", "staffing", "staffing-learnt") for name in (short, ELSEWHERE[short])
)
"""Policies that know the seconds of a call, which a profile holds."""
WITH_HOPS = PLANNING - {"smoe", ELSEWHERE["smoe"]}
"""Those of them that know the seconds of a hop."""

DEFAULT_BURST = Burst(2)
"""Standbys of a policy that has none of its own, and runs with them."""
SETTINGS = "policy settings"


def limits_of(workload: Workload) -> LimitSettings:
    """Decision limits with the workload's space, memory numbers and capacity."""
    runtime = RuntimeMemory.same(workload.runtime_mb)
    return LimitSettings(space=workload.space, alpha=workload.alpha, runtime=runtime, capacity=workload.capacity)


def policy_of(name: str, workload: Workload, grid: Grid, group: Group) -> Policy:
    """The policy as the controller would make it. Segments are left alone, as in the paper. Raises SettingsError."""
    pipeline, base, plan = grid.custom_of(group.workload), without_burst(name), grid.plan_of(name, group)
    table = _table(name, workload, grid, group)
    if grid.speed > 1 and base in HPA_NAMES:
        table = {
            **hpa_of_windows(grid.window_s),
            **_entries(table),
        }
    if pipeline is None and base in WITH_HOPS and grid.hop_factor != 1.0:
        table = {"hop_factor": grid.hop_factor, **_entries(table)}
    folder = Path() if pipeline is None else Path(pipeline.folder)
    making = making_of(base, workload, grid.window_s, table, folder, plan, group.seed)
    if pipeline is None or base not in PLANNING:
        return make_policy(making)
    parts = (making.settings, making.topology, making.limits, making.prices)
    return make_policy(MakingByProfile(*parts, pipeline, group.tokens, measured=making.measured))


def making_of(
    name: str,
    workload: Workload,
    window_s: float,
    table: Path | Mapping[str, Any] | None,
    folder: Path = Path(),
    plan: Path | None = None,
    seed: int = 0,
) -> Making:
    """What the controller makes the policy ``name`` of, for the experts of ``workload`` alone. ``table``: the policy's
    settings; ``folder``: the pipeline's. Raises SettingsError."""
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=folder,
        policy=name,
        policy_settings=table,
        plan=plan,
        policy_seed=seed,
        interval_s=window_s,
        slo_s=workload.slo_s,
        min_replicas=workload.space.replicas_min,
        max_replicas=workload.space.replicas_max,
        scale_segments=False,
        space=workload.space,
        alpha=workload.alpha,
        runtime_mb=workload.runtime_mb,
    )
    return Making(settings, workload.topology, limits_of(workload), workload.prices, measured=workload.measured)


def _entries(table: Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    return read_toml(table, SETTINGS) if isinstance(table, Path) else table or {}


def _table(name: str, workload: Workload, grid: Grid, group: Group) -> Path | Mapping[str, Any] | None:
    """The policy's settings; with standbys :data:`DEFAULT_BURST` where neither they nor its plan have some, and no plan
    was searched with standbys: where these do not pay it has none."""
    given, plan = grid.settings_of(name, group), grid.plan_of(name, group)
    if name == without_burst(name):
        return given
    table = _entries(given)
    in_plan = plan is not None and (
        plan.name.startswith(f"{file_name(name)}.") or any(one.burst for one in load_plan(plan).configurations.values())
    )
    if BURST_TABLE in table or in_plan:
        return table or None
    return {**table, BURST_TABLE: asdict(DEFAULT_BURST)}


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
        return {**planned_by(self.custom, self.tokens), **stored}


def planned_by(custom: CustomPipeline, tokens: int = 0) -> dict[str, Any]:
    """Settings by which a policy plans with the call times that ``custom`` is simulated with. ``tokens``: of a mean
    request; 0: the pipeline's own."""
    scale = custom.cpu_scale or CLUSTER_CORE * custom.cluster
    table = {"profile": str(custom.profile_file), "cpu_scale": scale, "other_machine": True}
    return table | {"mean_tokens": tokens or round(custom.mean_tokens)} | ({"cluster": True} if custom.cluster else {})
