"""Requests through instances of one kind under one of the ingress' schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Scheduler
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import Colocated, MinimalLoad, RoundRobin
from functions.scheduling.settings import ArrowSettings, SchedulingError, Targets
from simulation.generation.engine import GenerationSimulation, Outcome, Request
from simulation.generation.measured import Measured

SCHEDULES: dict[str, Callable[..., Scheduler]] = {
    "colocated": Colocated,
    "arrow": Arrow,
    "minimal-load": MinimalLoad,
    "round-robin": RoundRobin,
    "deadline": lambda profiles, targets, _: Deadline(profiles, targets),
}
"""By the name that ``smoe up --schedule`` has for it."""


def simulate(
    requests: Sequence[Request],
    times: Measured,
    targets: Targets,
    schedule: str = "colocated",
    instances: int = 1,
    prefill: int | None = None,
) -> Outcome:
    """``requests`` in order of arrival. ``prefill``: instances that begin with prompts, half by default. Raises
    SchedulingError for fewer than two instances with roles."""
    scheduler = SCHEDULES[schedule]({}, targets, max(1, instances // 2) if prefill is None else prefill)
    if scheduler.roles and instances < 2:
        raise SchedulingError(f"{schedule} shares prefill and decode out among two instances or more, got {instances}")
    profile = times.profile()
    for name in range(instances):
        scheduler.add(name, profile)
    pacing = Pacing(profile, targets) if schedule == "deadline" else None
    return GenerationSimulation(requests, scheduler, times, ArrowSettings().update_s, pacing).run()
