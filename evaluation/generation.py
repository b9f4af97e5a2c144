"""A decoder under policies: a token trace, simulated with the controller's own loop, limits, prices and meters.

Policies see what the ingress and the gateway of a running decoder report, segments as instances
(:mod:`autoscaler.policy.instances`); the constants next to them are chosen in hindsight, on the same trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.checked import read_toml
from autoscaler.contract import Configuration, NodeInfo, Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.policy.instances import InstancesPolicy
from autoscaler.settings import ELSEWHERE, ControllerSettings
from autoscaler.state.targets import Targets
from simulation.engine.controlled import Step, failures_of, simulate_policy
from simulation.engine.errors import SimulationError
from simulation.generation.decoder import DecoderSimulation
from simulation.generation.engine import Outcome, Request
from simulation.generation.measured import Measured
from simulation.generation.meters import TextsWindow
from simulation.generation.observed import DecoderMetrics
from simulation.workloads.workload import Workload

CONSTANT = "constant"
"""Name of the constants: so many instances, and of every expert one replica."""
_NAMED_CONSTANT = re.compile(r"constant-([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?")
"""Name of one constant: instances, and replicas of every expert, one where none is given."""
ENOUGH = 0.95
"""Part of the requests that are to be within the targets."""
_STAFFING = ("staffing", ELSEWHERE["staffing"])
_PLANNING = (*_STAFFING, "last-window", ELSEWHERE["last-window"])
"""Policies of experts that plan with a profile of single nodes."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What all policies meet."""

    folder: Path
    """The pipeline's."""
    nodes_profile: Path
    workload: Workload
    times: Measured
    requests: Sequence[Request]
    """In order of arrival."""
    targets: Targets
    """TTFT and TPOT: λ."""
    start: Mapping[str, Configuration]
    """Function → what every run begins with."""
    window_s: float = 5.0
    warm_up_s: float = 300.0
    """Neither requests nor windows of this time count."""
    max_replicas: int = 8
    settings: Path | None = None
    """Folder of policies' settings, ``POLICY.toml``."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises SimulationError where nothing would count."""
        most_s = self.until_s - self.window_s
        if self.warm_up_s > most_s:
            raise SimulationError(
                f"a warm-up of {self.warm_up_s:g} s leaves no window to count, as the requests end within "
                f"{self.until_s:g} s; it may be 0 to {most_s:g} s (--warm-up)"
            )

    @property
    def until_s(self) -> float:
        """Whole windows that hold all arrivals."""
        return self.window_s * max(1, math.ceil(self.requests[-1].arrival_s / self.window_s + 1e-9))

    @property
    def limits(self) -> LimitSettings:
        space = replace(self.workload.space, replicas_min=1, replicas_max=self.max_replicas)
        return LimitSettings(space=space, alpha=self.workload.alpha)

    def with_instances(self, instances: int) -> Setting:
        """The same begun with so many."""
        return self._with(self.workload.segments, instances)

    def with_experts(self, replicas: int) -> Setting:
        """The same begun with so many replicas of every expert."""
        return self._with(self.workload.experts, replicas)

    def _with(self, nodes: Sequence[NodeInfo], replicas: int) -> Setting:
        functions = {node.function for node in nodes}
        start = {name: one.with_replicas(replicas) if name in functions else one for name, one in self.start.items()}
        return replace(self, start=start)


def policy_of(setting: Setting, name: str, table: Mapping[str, Any] | None = None) -> Policy:
    """As the controller makes it for a decoder; ``table``: its settings in place of those of the file. Raises
    SettingsError."""
    file = None if setting.settings is None else setting.settings / f"{name}.toml"
    if table is None and file is not None and file.exists():
        table = read_toml(file, "policy settings")
    if name in _PLANNING:
        planner = {"profile": str(setting.nodes_profile), "other_machine": True}
        no_standbys = {"standbys": 0.0} if name in _STAFFING else {}
        table = {**planner, **no_standbys, **(table or {})}
    settings = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=setting.folder,
        policy="static" if name == CONSTANT else name,
        policy_settings=table,
        interval_s=setting.window_s,
        ttft_s=setting.targets.ttft_s,
        tpot_s=setting.targets.tpot_s,
        max_replicas=setting.max_replicas,
        space=setting.workload.space,
    )
    making = Making(settings, setting.workload.topology, setting.limits, setting.workload.prices)
    return InstancesPolicy(make_policy(making))


def run_policy(setting: Setting, name: str) -> dict[str, Any]:
    """What came of it, JSON-ready. ``constant-4`` holds four instances and one replica of every expert,
    ``constant-4x2`` two of every expert. Raises SettingsError and SimulationError."""
    named = _NAMED_CONSTANT.fullmatch(name)
    if named is None:
        return simulate_made(setting, name, policy_of(setting, name))
    counts = [int(count or 1) for count in named.groups()]
    if max(counts) > setting.max_replicas:
        raise SettingsError(f"policy is {name!r}; a function has at most {setting.max_replicas} replicas")
    held = setting.with_instances(counts[0]).with_experts(counts[1])
    return simulate_made(held, name, policy_of(held, CONSTANT))


def simulate_made(setting: Setting, name: str, policy: Policy) -> dict[str, Any]:
    """The same of a policy that is made already; ``name`` is its row's. Raises SimulationError."""
    workload, times = setting.workload, setting.times.drawing(setting.seed)
    simulation = DecoderSimulation(workload, times, setting.requests, setting.start, seed=setting.seed)
    steps = simulate_policy(
        simulation,
        policy,
        setting.limits,
        window_s=setting.window_s,
        until_s=setting.until_s,
        metrics_of=DecoderMetrics,
    )
    counted = steps[round(setting.warm_up_s / setting.window_s) :]
    return {"policy": name, "simulated": True} | _texts(setting, simulation.outcome()) | _windows(setting, counted)


def constants(setting: Setting) -> Iterator[dict[str, Any]]:
    """With one instance, two and so on, up to the first number with which :data:`ENOUGH` requests are within the
    targets."""
    for instances in range(1, setting.max_replicas + 1):
        summary = run_policy(setting.with_instances(instances), CONSTANT) | {"policy": f"{CONSTANT} {instances}"}
        yield summary
        if summary["goodput"] >= ENOUGH:
            return


def _texts(setting: Setting, outcome: Outcome) -> dict[str, Any]:
    """Requests after the warm-up. One without a first token, or with more to come, counts once it is late, or too slow
    even if it ended now."""
    targets, until_s = setting.targets, setting.until_s
    ttft_s, tpot_s, kept = list[float](), list[float](), list[bool]()
    for request, first_s, token_s in zip(setting.requests, outcome.ttft_s, outcome.tpot_s, strict=True):
        if request.arrival_s < setting.warm_up_s:
            continue
        so_far_s = until_s - request.arrival_s
        late = targets.ttft_s is not None and (so_far_s if first_s is None else first_s) > targets.ttft_s
        if first_s is not None:
            ttft_s.append(first_s)
        pace_s = token_s
        if token_s is None and first_s is not None:
            pace_s = (so_far_s - first_s) / (request.output - 1)
        slow = pace_s is not None and targets.tpot_s is not None and pace_s > targets.tpot_s
        if token_s is None and not late and not slow:
            continue
        kept.append(not late and not slow)
        if token_s is not None and request.output > 1:
            tpot_s.append(token_s)
    return {
        "requests": len(kept),
        "goodput": float(np.mean(kept)) if kept else 0.0,
        "ttft_s": _quantiles(ttft_s),
        "tpot_s": _quantiles(tpot_s),
    }


def _windows(setting: Setting, steps: Sequence[Step]) -> dict[str, Any]:
    experts = {node.id for node in setting.workload.experts}
    windows = [step.window for step in steps if isinstance(step.window, TextsWindow)]
    over = [judged for window in windows if (judged := _over(window, setting.targets)) is not None]
    hours = len(steps) * setting.window_s / 3600
    costs = [step.report.cost.provisioned or 0.0 for step in steps]
    ready = [
        float(np.mean([node.ready_replicas or 0 for node in step.report.observation.nodes if node.node in experts]))
        for step in steps
    ]
    return {
        "windows": len(steps),
        "windows_over": float(np.mean(over)) if over else None,
        "cost_per_hour": sum(costs) / hours,
        "cost": sum(costs),
        "instance_s": sum(window.instances for window in windows) * setting.window_s,
        "currency": setting.workload.prices.currency,
        "instances_mean": float(np.mean([window.instances for window in windows])),
        "instances_max": max(window.instances for window in windows),
        "expert_replicas_mean": float(np.mean(ready)),
        "changes": sum(len(step.report.applied) for step in steps),
        **failures_of(steps),
    }


def _over(window: TextsWindow, targets: Targets) -> bool | None:
    """Whether the P95 of first tokens, or of single intervals, is above its target, or texts wait and none began; None
    where there is nothing to judge."""
    pairs = ((targets.ttft_s, window.ttft_s), (targets.tpot_s, window.tpot_s))
    tails = [(np.quantile(seconds, 0.95), target) for target, seconds in pairs if target is not None and seconds.size]
    if not window.ttft_s.size and window.waiting:
        return True
    return any(bool(tail > target) for tail, target in tails) if tails else None


def _quantiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    return {"p50": float(p50), "p95": float(p95)}
