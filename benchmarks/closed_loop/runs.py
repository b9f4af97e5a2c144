"""A policy on the running pipeline and on its simulation: one replay each, driven by the controller's own loop.

Policies scale experts and are billed for them; segments have what keeps them from being the bottleneck.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from autoscaler.build import build_controller
from autoscaler.contract import SLO_QUANTILE, Configuration, ConfigurationSpace, Cost, TickReport, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings, runtime_of
from benchmarks.closed_loop.contenders import START, Contender
from benchmarks.fidelity.runs import settle
from benchmarks.harness.controlling import controlling
from benchmarks.harness.cores import FULL, cores, cores_busy
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.stepped_load import since_step_s
from gateway.client.client import GatewayClient
from platform_words.memory import PROCESS
from simulation.arrays import Bools, Floats
from simulation.engine.controlled import simulate_policy
from simulation.engine.regions import measured_part
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.profiles.model.storage import load
from simulation.workloads.workload import Workload
from smoe.lifecycle import GatewaySettings
from traces import generate
from traces.model import Trace

WITH_PROFILE = ("smoe", "last-window", "staffing")
SPACE = ConfigurationSpace(gpu_shares=())
SEGMENT_CORES = 0.3
"""Real cores of every segment, whatever a configured core is."""
WARM, WARM_PER_S = 30, 4.0
"""Requests before a run that are not counted, with a real core for every expert: the first calls of a new replica take
so much CPU that under a hundredth of a core they last for tens of seconds."""


def check_period(profile: Path, cpu_period_ms: float) -> None:
    """Raises ClickException where limits are to have another CFS period than the profile's, which is simulated."""
    profiled_ms = load(profile).metadata.settings.get("cpu_period_ms", GatewaySettings.cpu_period_ms)
    if profiled_ms != cpu_period_ms:
        raise click.ClickException(
            f"{profile} was measured with CFS periods of {profiled_ms:g} ms, and the run is to have periods of "
            f"{cpu_period_ms:g} ms: give --cpu-period-ms {profiled_ms:g}, or a profile of that period"
        )


@dataclass(frozen=True)
class Run:
    """What all policies meet. Seconds are of the clock."""

    trace: Trace
    texts: tuple[str, ...]
    mean_tokens: int
    slo_s: float
    window_s: float
    """Between decisions."""
    cpu_scale: float
    """Real cores per configured core."""
    profile: Path
    seed: int
    period_s: float
    """Time between two steps up of the load."""
    settled_s: float
    """After a step until the load and what policies made of it count as steady."""
    load: tuple[float, ...] = ()
    """Tokens of each expert over those of the busiest one; without any, all have the same."""

    @property
    def segment(self) -> Configuration:
        """Every segment's configuration."""
        return Configuration(1024, SEGMENT_CORES / self.cpu_scale, 0.0, 1, 10)

    def start(
        self, contender: Contender, topology: Topology, expert: Configuration = START
    ) -> dict[str, Configuration]:
        """Function → configuration before the first request, segments and experts."""
        experts = [node.function for node in topology.nodes if node.kind == "expert"]
        replicas = contender.start(self.load or (1.0,) * len(experts))
        by_function = {name: replace(expert, replicas=count) for name, count in zip(experts, replicas, strict=True)}
        return {node.function: by_function.get(node.function, self.segment) for node in topology.nodes[1:]}


@dataclass(frozen=True)
class Outcome:
    """What came of one run; costs are the experts' in an hour, in the price sheet's currency."""

    p50_ms: float
    p95_ms: float
    p95_over_slo: float
    violations: float
    """Share of judged windows that were over the SLO."""
    provisioned: float
    busy: float
    steady: float | None
    """``provisioned`` of windows that lie ``Run.settled_s`` or more after a step of the load; None without any."""
    transient: float | None
    """The same of all others."""
    answered: int
    failed: int
    changes: int
    measured_part: float | None = None
    """In a simulated run: part of the calls whose tokens and cores the profile covers; the rest is extrapolated."""
    call_cpu_ms: float | None = None
    """CPU time of the experts' replicas for each call that they answered; None without a call, or without readings."""
    full_machine: float | None = None
    """In a measured run: part of the seconds in which at least ``cores.FULL`` of the machine's cores were busy."""


def settings_of(contender: Contender, run: Run, directory: Path) -> ControllerSettings:
    """The settings of a controller of one policy."""
    table = dict(contender.table)
    if contender.policy in WITH_PROFILE:
        table |= {"profile": str(run.profile), "cpu_scale": run.cpu_scale, "mean_tokens": run.mean_tokens}
    return ControllerSettings(
        gateway_url="http://127.0.0.1:1",
        orchestration=PROCESS,
        manifest_dir=directory,
        policy=contender.policy,
        policy_settings=table or None,
        interval_s=run.window_s,
        slo_s=run.slo_s,
        fallback_windows=0,
        max_replicas=SPACE.replicas_max,
        scale_segments=False,
        space=SPACE,
    )


def measured(
    run: Run, contender: Contender, directory: Path, client: GatewayClient, password: str, metrics: str | None = None
) -> tuple[Outcome, Floats, float]:
    """The policy on the running pipeline, when each request was sent [requests] float64, in seconds after the first
    look, and the Unix time of the replay's beginning. ``metrics``: the Prometheus that the controller reads; None: it
    scrapes by itself."""
    settings = replace(
        settings_of(contender, run, directory),
        gateway_url=client.url, password=password, prometheus_url=metrics, window_s=run.window_s,
    )  # fmt: skip
    controller, window_s = build_controller(settings)
    topology = controller.topology
    start = run.start(contender, topology)
    warm = {name: replace(one, cpu_cores=max(one.cpu_cores, 1 / run.cpu_scale)) for name, one in start.items()}
    platform = OpenFaasPlatform(client.url, topology.pipeline, (settings.user, password))
    settle(client, platform, warm)
    with ReplayProcess(f"{client.url}/function/{topology.pipeline}", run.seed) as sender:
        sender.replay(generate.synthetic(WARM, WARM / WARM_PER_S, 0.5, run.seed), run.texts[:WARM])
        settle(client, platform, start)
        begun_s = time.time()
        controller.tick(begun_s)  # the first look has nothing to compare with: no window, and so no change
        with cores_busy() as busy, controlling(controller, run.window_s, window_s) as reports:
            replayed_s, result = sender.replay(run.trace, run.texts)
    offset_s = replayed_s - begun_s
    sent_s = np.array([(record.sent_s or record.scheduled_s) + offset_s for record in result.records])
    took_s = np.array([record.latency_s or 0.0 for record in result.records])
    answered = np.array([record.outcome == "ok" for record in result.records])
    full = float(np.mean(np.array(busy) >= FULL * cores()))
    real = replace(outcome(run, sent_s, took_s, answered, reports, begun_s), full_machine=full)
    return real, sent_s, replayed_s


def simulated(
    run: Run,
    contender: Contender,
    directory: Path,
    workload: Workload,
    sent_s: Floats,
    counts: np.ndarray,
    seed: int,
    start: Configuration = START,
) -> Outcome:
    """The same policy on the simulated pipeline; ``sent_s`` [requests], ``counts`` [1 + experts, requests]."""
    settings = settings_of(contender, run, directory)
    runtime = runtime_of(settings, workload.topology.dtype)
    limits = LimitSettings(space=workload.space, alpha=settings.alpha, runtime=runtime)
    policy = make_policy(Making(settings, workload.topology, limits, workload.prices, measured=workload.measured))
    order = np.argsort(sent_s, kind="stable")
    sent_s, counts = sent_s[order], counts[:, order]
    initial = workload.initial(start) | run.start(contender, workload.topology, start)
    simulation = Simulation(workload, Requests(sent_s, counts, "prompts"), initial, seed=seed)
    until_s = float(np.ceil(run.trace.duration_s / run.window_s) * run.window_s)
    steps = simulate_policy(simulation, policy, limits, window_s=run.window_s, until_s=until_s)
    windows = [step.window for step in steps]
    if simulation.requests.arrival_s.size > sum(window.latency_s.size for window in windows):
        windows.append(simulation.advance(simulation.now_s + 60.0))
    took_s = simulation.now_s - sent_s
    answered = np.zeros(sent_s.size, dtype=bool)
    for window in windows:
        took_s[window.finished], answered[window.finished] = window.latency_s, True
    without_part = outcome(run, sent_s, took_s, answered, [step.report for step in steps], 0.0)
    return replace(without_part, measured_part=measured_part(workload, simulation.requests, steps))


def outcome(
    run: Run, sent_s: Floats, took_s: Floats, answered: Bools, reports: Sequence[TickReport], begun_s: float
) -> Outcome:
    """Quantiles of all answers. ``sent_s``, ``took_s``, ``answered`` [requests]: after ``begun_s`` (Unix time, as the
    reports'), until the answer came or the failure was known."""
    latencies_s = took_s[answered]
    p50_s, p95_s = np.quantile(latencies_s, (0.5, 0.95))
    rows = []
    for report in reports:
        experts = [node.node for node in report.observation.nodes if node.kind == "expert"]
        costs = [report.cost_by_node.get(node, Cost(None, None)) for node in experts]
        if all(cost.provisioned is not None and cost.busy is not None for cost in costs):
            spent = (sum(getattr(cost, meter) for cost in costs) for meter in ("provisioned", "busy"))
            observation = report.observation
            rows.append((observation.end_s - begun_s, observation.window_s / 3600, *spent))
    end_s, hours, provisioned, busy = np.array(rows).T
    # A window is steady where the load did not change within it, nor shortly before.
    is_steady = since_step_s(end_s - 1e-6, run.period_s) >= run.settled_s + 3600 * hours
    steady, transient = (
        float(provisioned[at].sum() / hours[at].sum()) if at.any() else None for at in (is_steady, ~is_steady)
    )
    return Outcome(
        1000 * float(p50_s),
        1000 * float(p95_s),
        float(p95_s / run.slo_s),
        float(np.mean(windows_over(run, sent_s, sent_s + took_s, answered))),
        float(provisioned.sum() / hours.sum()),
        float(busy.sum() / hours.sum()),
        steady,
        transient,
        int(latencies_s.size),
        int((~answered).sum()),
        sum(len(report.applied) for report in reports),
        call_cpu_ms=call_cpu_ms(reports),
    )


def call_cpu_ms(reports: Sequence[TickReport]) -> float | None:
    """CPU milliseconds of the experts' replicas for each call that they answered, over all windows with readings."""
    experts = [
        (node, report.observation.window_s)
        for report in reports
        for node in report.observation.nodes
        if node.kind == "expert" and node.cpu_s is not None and node.requests_per_s is not None
    ]
    calls = sum((node.requests_per_s or 0.0) * window_s for node, window_s in experts)
    return 1000 * sum(node.cpu_s or 0.0 for node, _ in experts) / calls if calls else None


def windows_over(run: Run, sent_s: Floats, ends_s: Floats, answered: Bools) -> list[bool]:
    """Whether each judged window of the clock is over the SLO, by the P95 of the answers that came in it. One without
    an answer is, where requests failed in it or waited at its end; else it is not judged. Arrays [requests]."""
    over = []
    for number in range(int(ends_s.max() // run.window_s) + 1):
        end_s = (number + 1) * run.window_s
        ended = ends_s // run.window_s == number
        if (here := ended & answered).any():
            over.append(bool(np.quantile((ends_s - sent_s)[here], SLO_QUANTILE) > run.slo_s))
        elif (ended | ((sent_s < end_s) & (ends_s >= end_s))).any():
            over.append(True)
    return over
