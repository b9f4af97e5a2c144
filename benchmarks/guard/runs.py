"""One world under the guarded policy, under HPA and under what a verdict is worth nothing without."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoscaler.build import guarded
from autoscaler.contract import SLO_QUANTILE, Burst, Policy, TickReport
from autoscaler.policies import BURST_TABLE, Making, make_policy
from autoscaler.policy.bursting import BurstingPolicy
from autoscaler.prices import total_cost
from autoscaler.settings import ControllerSettings
from benchmarks.guard.scrapes import ScrapedMetrics
from benchmarks.guard.verdict import Outcome, without_numbers
from benchmarks.guard.worlds import Prepared, prepared
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.learnt_files import published_actor
from evaluation.comparison.policies import limits_of
from rl.agent.doubts import ranges_of
from rl.agent.export import load as load_actor
from rl.agent.policy import LearntPolicy, encoder_for
from rl.features import calls_of
from rl.reward import RewardSettings
from rl.staffing.policy import RuleSettings, rule_for
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.simulated import Simulated
from simulation.engine.simulation import Simulation, Window

WARM_UP_S = 60.0
"""Left out: a policy's first windows, with what was deployed."""
ANOTHER_SEED = 1_000_003
"""Added to a world's: other service times and cold starts, the same requests."""
POLICIES = ("staffing", "smoe")
AGAIN, CONSTANT = "hpa again", "constant"
OPPONENTS = (AGAIN, CONSTANT)
"""HPA under another seed, which is the noise of the measure, and what was deployed, left alone."""
_INSTEAD = re.compile(r"\(\S+ instead of \S+: (?P<why>.*)\)$")


@dataclass(frozen=True)
class RunSettings:
    """How worlds are run. ``fallback``: as of ``smoe autoscale --fallback``, None: the product's default."""

    policy: str = "staffing"
    minutes: float = 10.0
    window_s: float = 10.0
    fallback: int | None = None
    every: int = 4
    """Worlds from one to the next in which :data:`OPPONENTS` run, too."""


def run_world(seed: int, settings: RunSettings) -> dict[str, Any]:
    """A row: the world, and the outcome of each policy in it. Raises EvaluationError."""
    world = prepared(seed, 60 * settings.minutes)
    names = (settings.policy, "hpa", *(OPPONENTS if seed % settings.every == 0 else ()))
    outcomes = {name: asdict(outcome_of(world, name, settings)) for name in names}
    drawn = world.world
    return {
        "seed": seed, "world": asdict(drawn), "kinds": drawn.kinds, "slo_s": world.workload.slo_s,
        "start": asdict(world.start), "outcomes": outcomes,
    }  # fmt: skip


def row_of(seed: int, settings: RunSettings) -> dict[str, Any]:
    """:func:`run_world`, or why the world has no row. Here, since another process finds no function of a package's
    ``__main__``."""
    try:
        return run_world(seed, settings)
    except EvaluationError as error:
        return {"seed": seed, "refused": str(error)}


def outcome_of(world: Prepared, name: str, settings: RunSettings) -> Outcome:
    """One run: ``settings.policy``, ``hpa``, or one of :data:`OPPONENTS`."""
    policy, seed = policy_for(world, name, settings), world.world.seed + ANOTHER_SEED * (name == AGAIN)
    logging.getLogger("smoe").setLevel(logging.CRITICAL)  # what is broken here is meant to be
    metrics: list[ScrapedMetrics] = []

    def scraped(simulation: Simulated, epoch_s: float) -> ScrapedMetrics:
        metrics.append(ScrapedMetrics(simulation, epoch_s, world.breaks, max(15.0, 3 * settings.window_s)))
        return metrics[0]

    workload = world.workload
    simulation = Simulation(workload, world.requests, workload.initial(world.start), seed=seed)
    steps = simulate_policy(
        simulation, policy, limits_of(workload), window_s=settings.window_s, until_s=world.seconds, metrics_of=scraped
    )
    warm_up = round(WARM_UP_S / settings.window_s)
    experts = [node.id for node in workload.experts]
    costs = [total_cost(window, workload.prices)[1] for window in metrics[0].exact[warm_up:]]
    return outcome(steps[warm_up:], [sum(by_node[node].provisioned or 0.0 for node in experts) for by_node in costs],
                   workload.slo_s, policy.name)  # fmt: skip


def outcome(steps: Sequence[Step], costs: Sequence[float], slo_s: float, policy: str) -> Outcome:
    """What the windows of ``steps`` come to. ``costs``: provisioned of the experts in each, by the simulator's own
    numbers, whatever the metrics showed."""
    guarded_by = Counter(why for step in steps if (why := guards_reason(step.report, policy)))
    held = sum(not any(one.valid for one in step.report.decisions) for step in steps)
    judged = [late for step in steps if (late := over(step.window, slo_s)) is not None]
    return Outcome(sum(costs), sum(judged), len(steps), dict(guarded_by), held)


def over(window: Window, slo_s: float) -> bool | None:
    """Whether a window is over λ; one in which nothing was answered is where requests wait, else it is not judged."""
    p95_s = window.judged_s(SLO_QUANTILE)
    return None if p95_s is None else p95_s > slo_s


def guards_reason(report: TickReport, policy: str) -> str:
    """Why another policy decided in the place of ``policy``; empty where none did."""
    if report.policy == policy:
        return ""
    matched = next((match for one in report.decisions if (match := _INSTEAD.search(one.reason))), None)
    return "not stated" if matched is None else without_numbers(matched["why"])


def policy_for(world: Prepared, name: str, settings: RunSettings) -> Policy:
    """As ``smoe autoscale`` builds it, with the world's profile to plan with."""
    making = making_for(world, name, settings)
    if name == "staffing":
        policy: Policy = rule_for(making, RuleSettings(), world.planned)
    elif name == "smoe":
        path, planned = published_actor(making.topology.pipeline, RewardSettings.meter), world.planned
        encoder = encoder_for(making, planned.slo_s, calls_of(planned), planned.space)
        policy = BurstingPolicy(LearntPolicy(load_actor(path), encoder, ranges_of(path)), burst())
    else:
        policy = make_policy(making)
    return guarded(policy, making)


def making_for(world: Prepared, name: str, settings: RunSettings) -> Making:
    """What the policy is made of. A constant is HPA that may have the deployed replicas alone."""
    workload, space = world.planned, world.workload.space
    replicas = (world.start.replicas,) * 2 if name == CONSTANT else (space.replicas_min, space.replicas_max)
    controller = ControllerSettings(
        gateway_url="http://127.0.0.1:8080",
        manifest_dir=Path(),
        policy="hpa" if name in OPPONENTS else name,
        policy_settings=None if name == "staffing" else {BURST_TABLE: asdict(burst())},
        interval_s=settings.window_s,
        slo_s=workload.slo_s,
        min_replicas=replicas[0],
        max_replicas=replicas[1],
        scale_segments=False,
        space=space,
        alpha=workload.alpha,
        runtime_mb=workload.runtime_mb,
        fallback_windows=settings.fallback if name == settings.policy else None,
    )
    return Making(controller, workload.topology, limits_of(workload), workload.prices, measured=workload.measured)


def burst() -> Burst:
    """The rule's own standbys, which everybody gets."""
    values = RuleSettings().values()
    rule = {name: values[name] for name in ("headroom", "spare", "hold_s", "look_back_s")}
    return Burst(round(values["standbys"]), **rule)
