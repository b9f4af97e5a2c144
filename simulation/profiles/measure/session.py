"""One profile from start to end: bench, plan, points, transitions, and the facts that go with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvloop

from autoscaler.topology import load_topology
from moe.manifest import Manifest
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.concurrent import FAMILY as OVERLAP
from simulation.profiles.measure.gpu import GpuSettings, measure_gpu
from simulation.profiles.measure.idle_gap import FAMILY as IDLE
from simulation.profiles.measure.in_pass import FAMILY as IN_PASS
from simulation.profiles.measure.machine import this_machine, versions
from simulation.profiles.measure.measurement_plan import Plan, Point, ProfileSettings, node_classes
from simulation.profiles.measure.passes import measure_passes, requests_s
from simulation.profiles.measure.run import Bench, plan_of, run_live, run_memory
from simulation.profiles.measure.stopped import FAMILY as STOPPED
from simulation.profiles.measure.target import Gateway
from simulation.profiles.measure.transitions import measure_transitions
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.storage import Metadata, Profile

TRANSITION_S = 1.5
"""About what one repeat of all transitions takes, in a plan."""


PASSES_S = 45.0
"""About what the passes take; concurrent requests and those after idle gaps come on top."""


class Progress(Protocol):
    """Shows how far a profile is."""

    def plan(self, what: str, seconds: float) -> None:
        """What follows is expected to take this long."""

    def step(self, what: str, seconds: float) -> None:
        """A part of it begins, expected to take this long; the part before has ended."""


def measure_profile(
    gateway: Gateway,
    folder: Path,
    manifest: Manifest,
    deployments: Mapping[str, dict[str, Any]],
    settings: ProfileSettings,
    notes: Sequence[str],
    progress: Progress,
    gpu: GpuSettings | None = None,
) -> Profile:
    """Measure the pipeline in ``folder`` through ``gateway``.

    ``deployments``: by node id (and ``ingress``), what to deploy; ``notes``: what the platform states it cannot do;
    ``gpu``: GPU shares to measure too. Raises ProfileError.
    """
    begun, load = _now(), os.getloadavg()
    ends_s = _ends_s(settings)
    classes = node_classes(manifest)
    chosen = {entry.node: deployments[entry.node] for entry in classes}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        with contextlib.closing(Bench(gateway, manifest, chosen, settings, runner)) as bench:
            progress.plan("replicas and pilot", 5.0)
            bench.start()
            plan = plan_of(bench, classes, manifest, settings)
            rows = _rows(bench, plan, list(chosen), settings, runner, progress, ends_s)
        rows += measure_passes(gateway, manifest, deployments, settings, runner, progress.step)
        if gpu is not None:
            rows += measure_gpu(gateway, manifest, deployments, list(chosen), gpu, runner, progress.step)
    metadata = Metadata(
        pipeline=manifest.name,
        manifest_sha256=load_topology(folder).manifest_sha256,
        classes={entry.node: entry.members for entry in classes},
        machine=this_machine(),
        cpu_scale=settings.cpu_scale,
        versions=versions(),
        settings=settings.as_json(),
        begun=begun,
        ended=_now(),
        load_average=load,
        left_out=plan.left_out,
        notes=tuple(notes),
    )
    return Profile(metadata, tuple(rows))


def _ends_s(settings: ProfileSettings) -> float | None:
    """When repeats of functions stop, on the monotonic clock, so that whole requests have their time; None: never."""
    if not settings.most_minutes:
        return None
    return time.monotonic() + 60 * settings.most_minutes - (PASSES_S + settings.repeats * requests_s(settings))


def measure_requests(
    profile: Profile,
    gateway: Gateway,
    manifest: Manifest,
    deployments: Mapping[str, dict[str, Any]],
    settings: ProfileSettings,
    progress: Progress,
) -> Profile:
    """``known``, a profile of this pipeline on this machine, with concurrent requests and those after idle gaps
    measured again: they are compared with others of the same minute, so the rest may be older. Raises ProfileError
    where they could not be measured.
    """
    begun = _now()
    progress.plan("concurrent requests, and after idle gaps", settings.repeats * requests_s(settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = measure_passes(gateway, manifest, deployments, settings, runner, progress.step, alone=False)
    failed = [row.note for row in rows if not row.feasible]
    if failed or not rows:
        raise ProfileError(f"whole requests could not be measured: {failed[0] if failed else 'it takes no text'}")
    note = (
        f"requests that are concurrent or come after idle gaps ({OVERLAP}, {IDLE}) were measured again "
        f"from {begun} to {_now()}"
    )
    kept = tuple(row for row in profile.rows if row.family not in (OVERLAP, IDLE, IN_PASS, STOPPED))
    return Profile(replace(profile.metadata, notes=(*profile.metadata.notes, note)), (*kept, *rows))


def _rows(
    bench: Bench,
    plan: Plan,
    nodes: Sequence[str],
    settings: ProfileSettings,
    runner: asyncio.Runner,
    progress: Progress,
    ends_s: float | None,
) -> list[Row]:
    each_s = settings.transitions * TRANSITION_S
    progress.plan("points", plan.total_s + len(nodes) * each_s)

    def on_point(point: Point, seconds: float) -> None:
        progress.step(
            f"{point.node}: {point.family}, {point.tokens} tokens, {point.share:g} cores, {point.memory_mib} MiB, "
            f"{point.concurrency} at once",
            seconds,
        )

    rows = run_memory(bench, plan, on_point)
    for node in nodes:
        on_kind = partial(_on_kind, progress, node, each_s)
        rows += measure_transitions(bench, node, settings, runner, on_kind)
    return rows + run_live(bench, plan, on_point, ends_s)


def _on_kind(progress: Progress, node: str, each_s: float, what: str, part: float) -> None:
    progress.step(f"{node}: {what}", part * each_s)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
