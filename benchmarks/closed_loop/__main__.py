"""The learnt policy on the running pipeline, next to HPA, KPA, last-window optimum and static: ``python -m
benchmarks.closed_loop``.

The default pipeline on the embedded gateway under real limits, the same real prompts at the same arrivals of a bursty
hour, each policy in turns, several repeats; another policy begins each repeat. Policies scale experts and are billed
for them; segments have what keeps them from being the bottleneck. Every run is also simulated on the profile of this
machine, and the prediction stands next to what was measured. ``learnt_first``: among policies whose P95 is within the
SLO in the median of the repeats, the learnt one costs least provisioned. Where every expert at its cheapest would keep
the SLO in the simulation no policy can be distinguished, and the benchmark stops with a sentence. The
last line is one JSON object: ``cells`` (policy × repeat), ``failed``, ``learnt_first``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.build import build_controller
from autoscaler.contract import Configuration, ConfigurationSpace, Cost, TickReport
from autoscaler.decision.limits import LimitSettings
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings, with_hpa
from benchmarks.fidelity.runs import SEED, routing_of, settle
from benchmarks.harness.controlling import controlling
from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark, data_option, listed, seed_option
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.running import local_gateway, running_pipeline
from gateway.client.client import GatewayClient
from moe.reference import WholeModel
from simulation.engine.controlled import simulate_policy
from simulation.engine.regions import measured_part
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import fitting, open_profile
from simulation.profiles.model.pipeline import measured_workload
from simulation.workloads.custom import SEGMENT
from simulation.workloads.workload import Workload
from smoe.deployment import DeploymentSettings
from smoe.parity import compare_with_whole_model
from traces import catalog, prompts, scale
from traces.model import Trace

LEARNT = "smoe"
POLICIES = (LEARNT, "hpa", "kpa", "last-window", "static")
WITH_PROFILE = (LEARNT, "last-window")
SPACE = ConfigurationSpace(gpu_shares=())
START = Configuration(memory_mb=256, cpu_cores=2.0, gpu_share=0.0, replicas=2, concurrency=4)
"""Configuration of every expert; ``static`` keeps it."""
CHEAPEST = Configuration(memory_mb=128, cpu_cores=1.0, gpu_share=0.0, replicas=1, concurrency=1)
"""The least of Φ; where it keeps the SLO there is nothing to decide."""
MAX_WORDS = 24
INGRESS_CONCURRENCY = 512


@dataclass(frozen=True)
class Setting:
    """The command's options, the same for all policies."""

    seconds: float
    """Length of a run."""
    mean_rps: float
    cpu_scale: float
    """Real cores per configured core."""
    window_s: float
    """Between decisions."""
    slo_factor: float
    """SLO over a prompt's time through idle functions."""
    profile: Path | None
    data: Path | None
    seed: int


@dataclass(frozen=True)
class Run:
    """What all policies meet. Seconds are of the clock; ``window_s`` between decisions."""

    trace: Trace
    texts: tuple[str, ...]
    slo_s: float
    window_s: float
    cpu_scale: float
    profile: Path
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What came of one run; costs are the experts' in an hour, in the price sheet's currency."""

    p50_ms: float
    p95_ms: float
    p95_over_slo: float
    violations: float
    """Share of windows with answers whose P95 was over the SLO."""
    provisioned: float
    busy: float
    answered: int
    failed: int
    changes: int
    measured_part: float | None = None
    """In a simulated run: part of the calls whose tokens and cores the profile covers; the rest is extrapolated."""


def settings_of(policy: str, run: Run, directory: Path) -> ControllerSettings:
    """The settings of a controller of one policy."""
    table = {"profile": str(run.profile), "cpu_scale": run.cpu_scale} if policy in WITH_PROFILE else {}
    hpa = {"cpu_target": 0.5, "down_stabilisation_s": 10 * run.window_s, "period_s": 3 * run.window_s}
    return ControllerSettings(
        gateway_url="http://127.0.0.1:1",
        manifest_dir=directory,
        policy=policy,
        policy_settings=with_hpa(policy, table, hpa),
        interval_s=run.window_s,
        slo_s=run.slo_s,
        max_replicas=SPACE.replicas_max,
        scale_segments=False,
        space=SPACE,
    )


def measured(run: Run, settings: ControllerSettings, client: GatewayClient) -> Outcome:
    """The policy on the running pipeline, from ``START`` on."""
    controller, window_s = build_controller(replace(settings, gateway_url=client.url))
    topology = controller.topology
    start = {node.function: START if node.kind == "expert" else SEGMENT for node in topology.nodes[1:]}
    settle(client, OpenFaasPlatform(client.url, topology.pipeline, (settings.user, settings.password or "")), start)
    with (
        ReplayProcess(f"{client.url}/function/{topology.pipeline}", SEED) as sender,
        controlling(controller, run.window_s, window_s) as reports,
    ):
        _, result = sender.replay(run.trace, run.texts)
    answered = [record for record in result.records if record.outcome == "ok" and record.latency_s is not None]
    ends = np.array([(record.sent_s or record.scheduled_s) + (record.latency_s or 0.0) for record in answered])
    latencies = np.array([record.latency_s for record in answered], dtype=np.float64)
    return outcome(run, ends, latencies, reports, len(result.records) - len(answered))


def simulated(
    run: Run,
    settings: ControllerSettings,
    workload: Workload,
    sent_s: np.ndarray,
    counts: np.ndarray,
    start: Configuration = START,
) -> Outcome:
    """The same policy on the simulated pipeline; ``sent_s`` [requests], ``counts`` [1 + experts, requests]."""
    limits = LimitSettings(space=workload.space, alpha=settings.alpha, runtime_mb=settings.runtime_mb)
    policy = make_policy(Making(settings, workload.topology, limits, workload.prices))
    simulation = Simulation(workload, Requests(sent_s, counts, "prompts"), workload.initial(start), seed=run.seed)
    until_s = float(np.ceil(run.trace.duration_s / run.window_s) * run.window_s)
    steps = simulate_policy(simulation, policy, limits, window_s=run.window_s, until_s=until_s)
    windows = [step.window for step in steps]
    if simulation.requests.arrival_s.size > sum(window.latency_s.size for window in windows):
        windows.append(simulation.advance(simulation.now_s + 60.0))
    ends = np.concatenate([sent_s[window.finished] + window.latency_s for window in windows])
    latencies = np.concatenate([window.latency_s for window in windows])
    without_part = outcome(run, ends, latencies, [step.report for step in steps], 0)
    return replace(without_part, measured_part=measured_part(workload, simulation.requests, steps))


def outcome(
    run: Run, ends_s: np.ndarray, latencies_s: np.ndarray, reports: Sequence[TickReport], failed: int
) -> Outcome:
    """Quantiles of all answers, ``latencies_s`` [answers] at ``ends_s`` [answers]; windows are those of the clock in
    which answers came."""
    p50_s, p95_s = np.quantile(latencies_s, (0.5, 0.95))
    numbers = (ends_s // run.window_s).astype(np.int64)
    judged = [np.quantile(latencies_s[numbers == number], 0.95) > run.slo_s for number in np.unique(numbers)]
    hours, provisioned, busy = 0.0, 0.0, 0.0
    for report in reports:
        experts = [node.node for node in report.observation.nodes if node.kind == "expert"]
        costs = [report.cost_by_node.get(node, Cost(None, None)) for node in experts]
        if all(cost.provisioned is not None and cost.busy is not None for cost in costs):
            hours += report.observation.window_s / 3600
            provisioned += sum(cost.provisioned or 0.0 for cost in costs)
            busy += sum(cost.busy or 0.0 for cost in costs)
    return Outcome(
        1000 * float(p50_s),
        1000 * float(p95_s),
        float(p95_s / run.slo_s),
        float(np.mean(judged)),
        provisioned / hours,
        busy / hours,
        int(latencies_s.size),
        failed,
        sum(len(report.applied) for report in reports),
    )


def run_all(
    policies: Sequence[str], repeats: int, setting: Setting, show: Callable[[str, float], object]
) -> tuple[list[dict[str, Any]], float]:
    """(cells, SLO in seconds). Policies take turns within each repeat, in an order that :func:`turns` gives."""
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="smoe-closed-loop-") as name:
        folder = Path(name)
        cores = max(1, round(1 / setting.cpu_scale))
        deployment = DeploymentSettings(
            cpu_cores=SEGMENT.cpu_cores, ingress_cpu_cores=cores, ingress_concurrency=INGRESS_CONCURRENCY
        )
        gateway = local_gateway(folder / "state", cpu_scale=setting.cpu_scale)
        with running_pipeline(gateway, deployment) as served:
            client, directory = served.client, served.directory
            run = prepare(client, directory, served.manifest.name, setting)
            password = served.gateway.auth[1]
            workload, sent_s, counts = simulation_of(run, directory)
            static = settings_of("static", run, directory)
            refuse_slack(simulated(run, static, workload, sent_s, counts, CHEAPEST), run)
            for repeat in range(repeats):
                for number, policy in enumerate(turns(policies, repeat)):
                    show(f"{policy}, repeat {repeat + 1}", repeat * len(policies) + number)
                    settings = replace(settings_of(policy, run, directory), password=password)
                    real = measured(run, settings, client)
                    model = asdict(simulated(run, settings, workload, sent_s, counts)) if repeat == 0 else None
                    cell = {"policy": policy, "repeat": repeat, "measured": asdict(real), "simulated": model}
                    cells.append(cell)
    return cells, run.slo_s


def turns(policies: Sequence[str], repeat: int) -> tuple[str, ...]:
    """Whichever policy runs first meets a pipeline that has just been started or whatever the repeat before left: each
    policy does so in its turn."""
    first = repeat % len(policies)
    return (*policies[first:], *policies[:first])


def prepare(client: GatewayClient, directory: Path, pipeline: str, setting: Setting) -> Run:
    """The trace, its texts, and the SLO: a stated factor of a prompt's time through the functions as they start."""
    folder = catalog.data_folder(setting.data)
    chosen = prompts.load_prompts(catalog.text_folder(folder), MAX_WORDS)
    seed = setting.seed
    trace = scale.fit(catalog.bursty_hour(folder, "uniform", seed), setting.seconds, setting.mean_rps, seed)
    texts = tuple(chosen.choose(trace.requests, seed))
    parity = compare_with_whole_model(client, pipeline, directory, texts[:8])
    return Run(
        trace,
        texts,
        setting.slo_factor * parity.unloaded_p50_s,
        setting.window_s,
        setting.cpu_scale,
        setting.profile or fitting(directory, this_machine()),
        seed,
    )


def refuse_slack(cheapest: Outcome, run: Run) -> None:
    """Raises ClickException where every expert at its cheapest keeps the SLO."""
    if cheapest.p95_over_slo <= 1:
        raise click.ClickException(
            f"the SLO of {1000 * run.slo_s:.0f} ms does not bind: with every expert at its cheapest P95 is "
            f"{cheapest.p95_over_slo:.2f} of it, simulated, so no policy differs from never scaling at all; take a "
            f"smaller --cpu-scale or --slo-factor, or a higher --mean-rps"
        )


def simulation_of(run: Run, directory: Path) -> tuple[Workload, np.ndarray, np.ndarray]:
    """The pipeline on the profile of this machine, when the same requests are sent [requests], and the routing that the
    model gives them [1 + experts, requests]."""
    profile = open_profile(run.profile, directory, this_machine())
    counts = routing_of(WholeModel(directory), run.texts)
    workload = measured_workload(
        directory,
        profile,
        counts[0],
        slo_s=run.slo_s,
        cpu_scale=run.cpu_scale,
        space=SPACE,
        shared=True,
        segment_configuration=SEGMENT,
    )
    return workload, np.array(run.trace.arrival_s, dtype=np.float64), counts


def first_on_cost(cells: Sequence[Mapping[str, Any]]) -> bool:
    """The learnt policy keeps the SLO in the median of its repeats and no other that does is cheaper."""
    costs = {}
    for policy in dict.fromkeys(cell["policy"] for cell in cells):
        runs = [cell["measured"] for cell in cells if cell["policy"] == policy]
        if statistics.median(run["p95_over_slo"] for run in runs) <= 1:
            costs[policy] = statistics.median(run["provisioned"] for run in runs)
    return LEARNT in costs and costs[LEARNT] == min(costs.values())


def print_policies(cells: Sequence[Mapping[str, Any]], slo_s: float) -> None:
    """A row for each run, measured and simulated."""
    heads = ("policy", "repeat", "P50 ms", "P95/SLO", "windows over", "cost/h", "busy/h", "failed", "simulated")
    rows = []
    for cell in cells:
        real, model = cell["measured"], cell["simulated"]
        prediction = "" if model is None else f"P95/SLO {model['p95_over_slo']:.2f}, {model['provisioned']:.2f}/h"
        if model is not None and model["measured_part"] is not None:
            prediction += f", {model['measured_part']:.0%} as profiled"
        rows.append(
            (
                cell["policy"], cell["repeat"] + 1, f"{real['p50_ms']:.0f}", f"{real['p95_over_slo']:.2f}",
                f"{real['violations']:.0%}", f"{real['provisioned']:.3f}", f"{real['busy']:.3f}", real["failed"],
                prediction,
            )
        )  # fmt: skip
    print_table(f"policies on the running pipeline; SLO: P95 within {1000 * slo_s:.0f} ms", heads, rows)


@benchmark
@click.option("--policies", callback=listed(), default=",".join(POLICIES), help="Comma list (docs/policies.md).")
@click.option("--repeats", default=3, type=AT_LEAST_1, help="Runs of each policy.")
@click.option("--seconds", default=120.0, type=click.FloatRange(20), help="Length of a run in seconds.")
@click.option("--mean-rps", default=3.0, type=click.FloatRange(0.1), help="Requests per second on average.")
@click.option("--cpu-scale", default=0.015, type=click.FloatRange(0.001, 10), help="Real cores per configured core.")
@click.option("--interval", "window_s", default=2.0, type=click.FloatRange(0.5), help="Seconds between decisions.")
@click.option("--slo-factor", default=3.0, help="SLO over a prompt's time through idle functions.")
@click.option("--profile", type=PRESENT, help="Measured profile. [default: this machine's in simulation/profiles/data]")
@data_option
@seed_option
def main(policies: tuple[str, ...], repeats: int, **options: Any) -> None:
    with progress(repeats * len(policies)) as show:
        cells, slo_s = run_all(policies, repeats, Setting(**options), show)
    print_policies(cells, slo_s)
    failed = sum(cell["measured"]["failed"] for cell in cells)
    result = {"learnt_first": first_on_cost(cells), "failed": failed, "slo_ms": 1000 * slo_s, "cores": os.cpu_count()}
    print_result({**result, "cells": cells})


if __name__ == "__main__":
    main()
