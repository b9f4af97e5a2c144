"""Does the simulation predict the running pipeline? ``python -m benchmarks.fidelity``.

Each cell replays real prompts at the arrivals of a trace against the default pipeline on the embedded gateway, with
real limits, while a script scales functions up and resizes them in place; then the same arrivals, the same texts with
the routing the model gives them, and the same script run in the simulator on the profile of this machine. Both are
driven by the controller's own loop and billed by its own meters. Patterns, loads and configurations are not those that
the profile was fitted on. Every cell is measured several times: ``*_err`` are the worst over ``cells`` of the relative
error against the mean of a cell's runs (cost: provisioned), ``*_repeat`` of the runs' own distance from that mean,
which no model can go below.

Then nine policies replay one load that steps, live and simulated, on the pipeline that ``--in-loop`` names
(``benchmarks.fidelity.looped``): their errors, and
Kendall's tau of the live and the simulated order of policies (``kendall_tau*``, ``policies``). The last line is one
JSON object.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.contract import Configuration
from autoscaler.decision.limits import LimitSettings
from autoscaler.topology import load_topology
from benchmarks.fidelity.looped import POLICIES, SETTINGS, run_policies, simulate_all
from benchmarks.fidelity.machine import SINGLES, Singles, near, pace_of
from benchmarks.fidelity.ranking import METRICS, compare_policies
from benchmarks.fidelity.runs import (
    FULL,
    MEMORY_MB,
    SEED,
    THIRDS,
    Bench,
    Cell,
    Outcome,
    Record,
    Script,
    arrivals,
    load_records,
    measure,
    outcome,
    routing_of,
    save,
    send_singles,
    steps,
)
from benchmarks.harness.options import POSITIVE, PRESENT, benchmark, listed
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.report import in_words, print_result, print_table, progress
from benchmarks.harness.running import local_gateway, running_pipeline
from moe.reference import WholeModel
from platform_words.memory import RuntimeMemory
from simulation.engine.controlled import simulate_policy
from simulation.engine.regions import measured_part
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import find, open_profile
from simulation.profiles.model.pipeline import measured_workload
from simulation.profiles.model.storage import Profile
from simulation.workloads.workload import Workload
from smoe.deployment import DeploymentSettings
from smoe.pipelines import ensure_pipeline
from traces import catalog, prompts

MAX_WORDS = 24
INGRESS = Configuration(MEMORY_MB, 1.0, 0.0, 1, 10)
"""As deployed; in the simulator it costs what it costs and serves nothing."""
IDLE_CORES, TRIES = 0.05, 3
"""A run during which other processes kept more cores busy is repeated; so often at most, and the one with the least
interference is kept."""
SIMULATIONS = 20
"""Simulations of each run, with draws of their own: their mean is nearer to the model's value than one of them is."""
CELLS = (
    Cell("slow", 2.0, 0.35, 2, 0.55),
    Cell("normal", 3.0, 0.55, 2, 0.35),
    Cell("bursty", 2.0, 0.45, 3, 0.3),
    Cell("bursty", 4.0, 0.8, 2, 0.5),
)


def simulated(record: Record, workload: Workload, seed: int) -> Outcome:
    """The record's cell in the simulator, with the draws of ``seed``."""
    cell, seconds = record.cell, record.seconds
    requests = Requests(np.array(record.sent_s), np.array(record.counts, dtype=np.uint16), cell.name)
    first = steps(cell, workload.topology, seconds)[0][1]
    simulation = Simulation(workload, requests, first, seed=seed)
    policy = Script(cell, workload.topology, 0.0, seconds)
    limits = LimitSettings(space=workload.space, runtime=RuntimeMemory.same(0))
    steps_done = simulate_policy(simulation, policy, limits, window_s=seconds / THIRDS, until_s=seconds)
    latencies = [step.window.latency_s for step in steps_done]
    if simulation.requests.arrival_s.size > sum(simulated_outcome.size for simulated_outcome in latencies):
        latencies.append(simulation.advance(simulation.now_s + 60.0).latency_s)
    simulated_outcome = outcome(np.concatenate(latencies), [step.report for step in steps_done], 0)
    return replace(simulated_outcome, measured_part=measured_part(workload, simulation.requests, steps_done))


def workload_of(directory: Path, profile: Profile, record: Record, sets: Sequence[Singles]) -> Workload:
    """The pipeline on the machine of the profile, at its pace when the record was made, with the record's texts.
    ``sets``: single requests of all records. What client and gateway compute takes cores; the rest of their seconds is
    constant."""
    front_s = 0.0 if record.singles is None else min(record.singles.front_cpu_s, record.front_s)
    workload = measured_workload(
        directory,
        profile,
        np.array(record.counts[0]),
        slo_s=1.0,
        cpu_scale=1.0,
        shared=True,
        front_s=record.front_s - front_s,
        segment_configuration=INGRESS,
    )
    assert workload.host is not None
    close = near(sets, record.at_s, record.at_s + record.seconds) if record.at_s else []
    close = close or ([] if record.singles is None else [record.singles])
    pace = pace_of(close, workload, FULL) if close else 1.0
    return replace(workload, host=replace(workload.host, pace=pace, front_s=front_s))


def run_cells(
    cells: Sequence[Cell], runs: int, seconds: float, show: Callable[[str, float], object], kept: Path | None
) -> list[Record]:
    """Every cell, measured ``runs`` times in turns; ``kept``: a file that gets every record as soon as it is there."""
    with tempfile.TemporaryDirectory(prefix="smoe-fidelity-") as folder:
        chosen = prompts.load_prompts(catalog.text_folder(catalog.data_folder(None)), MAX_WORDS)
        records: list[Record] = []
        gateway, deployment = local_gateway(Path(folder)), DeploymentSettings(ingress_concurrency=512)
        with running_pipeline(gateway, deployment) as served, ReplayProcess(served.url, SEED) as sender:
            model, topology = WholeModel(served.directory), load_topology(served.directory)
            alone = chosen.choose(SINGLES, SEED + 1)
            tokens = routing_of(model, alone)
            bench = Bench(served.client, sender, topology, served.gateway.state, seconds)
            for number in range(len(cells) * runs):
                cell = cells[number % len(cells)]
                show(cell.name, number)
                texts = list(chosen.choose(arrivals(cell, seconds).requests, SEED))
                counts = routing_of(model, texts)
                records.append(least_disturbed(bench, cell, texts, counts, (alone, tokens)))
                if kept is not None:
                    save(records, kept)
            records[-1] = replace(records[-1], after=send_singles(bench, alone, tokens))
            if kept is not None:
                save(records, kept)
    return records


def least_disturbed(
    bench: Bench, cell: Cell, texts: Sequence[str], counts: np.ndarray, alone: tuple[Sequence[str], np.ndarray]
) -> Record:
    """The cell, repeated where other processes kept the machine busy, then or during the single requests before.
    ``counts`` [1 + experts, texts]; ``alone``: texts of the single requests, and their counts."""
    tries: list[Record] = []
    while not tries or (others_of(tries[-1]) > IDLE_CORES and len(tries) < TRIES):
        tries.append(measure(bench, cell, texts, counts, send_singles(bench, *alone)))
    return min(tries, key=others_of)


def others_of(record: Record) -> float:
    """Cores that other processes kept busy, in the run or in its single requests."""
    return max(record.others_cores or 0.0, 0.0 if record.singles is None else record.singles.others_cores)


def compare(records: Sequence[Record], paces: Sequence[float], ours: Sequence[Outcome]) -> dict[str, Any]:
    """One cell: measured means and the simulation's (over the runs' own arrivals), errors, and repeatability."""
    row: dict[str, Any] = {"cell": asdict(records[0].cell), "failed": sum(record.measured.failed for record in records)}
    row["host_cores"] = [round(record.host_cores, 3) for record in records]
    row["others_cores"] = [record.others_cores and round(record.others_cores, 3) for record in records]
    row["pace"] = [round(pace, 3) for pace in paces]
    parts = [outcome.measured_part for outcome in ours if outcome.measured_part is not None]
    row["measured_part"] = round(float(np.mean(parts)), 4) if parts else None
    for name, short in METRICS.items():
        theirs = np.array([getattr(record.measured, name) for record in records])
        mean, predicted = float(theirs.mean()), float(np.mean([getattr(outcome, name) for outcome in ours]))
        row[name] = {"measured": theirs.round(4).tolist(), "simulated": round(predicted, 4)}
        row[f"{short}_err"] = round(abs(predicted / mean - 1), 4)
        row[f"{short}_repeat"] = round(float(np.abs(theirs / mean - 1).max()), 4)
    return row


def compare_all(records: Sequence[Record], profile_path: Path | None) -> list[dict[str, Any]]:
    """Every cell of the records against the simulator."""
    with tempfile.TemporaryDirectory(prefix="smoe-fidelity-") as folder:
        directory, _ = ensure_pipeline("minilm", Path(folder) / "pipelines")
        machine = this_machine()
        profile = open_profile(profile_path, directory, machine) if profile_path else find(directory, machine)
        rows = []
        sets = [one for record in records for one in (record.singles, record.after) if one is not None]
        for cell in dict.fromkeys(record.cell for record in records):
            runs = [record for record in records if record.cell == cell]
            workloads = [workload_of(directory, profile, run, sets) for run in runs]
            ours = [simulated(*one, SEED + n) for one in zip(runs, workloads, strict=True) for n in range(SIMULATIONS)]
            rows.append(
                compare(runs, [workload.host.pace for workload in workloads if workload.host is not None], ours)
            )
    return rows


def print_compared(title: str, what: str, rows: Iterable[tuple[str, dict[str, Any]]], cost_digits: int) -> None:
    """For people. ``rows``: what each is of, and its figures."""
    columns = (what, "P50 ms", "sim", "P95 ms", "sim", "cost/h", "sim", "pace", "others", "profiled", "failed")
    lines = []
    for of, row in rows:
        figures = []
        for name, digits in zip(METRICS, (0, 0, cost_digits), strict=True):
            runs = " ".join(f"{value:.{digits}f}" for value in row[name]["measured"])
            figures += [runs, f"{row[name]['simulated']:.{digits}f}"]
        state = (" ".join(in_words(one, 2) for one in row[name]) for name in ("pace", "others_cores"))
        profiled = "–" if row["measured_part"] is None else f"{row['measured_part']:.0%}"
        lines.append((of, *figures, *state, profiled, row["failed"]))
    print_table(title, columns, lines)


@benchmark
@click.option("--profile", type=PRESENT, help="[default: the one here]")
@click.option("--seconds", default=60.0, type=click.FloatRange(30), help="Of a cell.")
@click.option("--cells", "count", default=len(CELLS), type=click.IntRange(0, len(CELLS)))
@click.option("--runs", default=2, type=click.IntRange(1, 10), help="Of each cell.")
@click.option("--policies", callback=listed(), default=",".join(POLICIES), help="In the loop; comma list, or none.")
@click.option(
    "--in-loop", "named", type=click.Choice(list(SETTINGS)), default="paper-experts", help="Pipeline of policies."
)
@click.option("--repeats", default=2, type=click.IntRange(1, 10), help="Of each policy.")
@click.option("--cpu-scale", type=POSITIVE, help="In the loop: real cores per configured one. [default: its own]")
@click.option("--cpu-period-ms", type=click.FloatRange(1, 1000), help="In the loop: of CPU limits, as of --profile.")
@click.option("--mean-rps", type=POSITIVE, help="In the loop. [default: its own]")
@click.option("--slo-ms", type=POSITIVE, help="In the loop. [default: its own]")
@click.option("--record", type=click.Path(path_type=Path), help="Keep what was measured of cells in this file.")
@click.option("--replay", type=PRESENT, help="Compare with such a file; nothing is measured.")
@click.option(
    "--looped", type=click.Path(path_type=Path), help="Keep what was measured of policies here, and go on from there."
)
def main(
    profile: Path | None, seconds: float, count: int, runs: int, policies: tuple[str, ...], named: str, repeats: int,
    cpu_scale: float | None, cpu_period_ms: float | None, mean_rps: float | None, slo_ms: float | None,
    record: Path | None, replay: Path | None, looped: Path | None,
) -> None:  # fmt: skip
    setting = SETTINGS[named].other(cpu_scale, mean_rps, slo_ms, cpu_period_ms)
    rows: list[dict[str, Any]] = []
    if replay is not None:
        rows = compare_all(load_records(replay), profile)
    elif count:
        with progress(count * runs) as show:
            rows = compare_all(run_cells(CELLS[:count], runs, seconds, show, record), profile)
    in_loop: dict[str, Any] = {}
    if policies and replay is None:
        with progress(len(policies) * repeats) as show:
            records = run_policies(setting, policies, repeats, show, looped, profile)
        rows_of_policies = simulate_all(setting, records, profile)
        in_loop = compare_policies(rows_of_policies, 1000 * setting.slo_s)
        title = f"policies in the loop; λ {in_loop['slo_ms']:.0f} ms"
        print_compared(title, "policy", ((row["policy"], row) for row in in_loop["policies"]), 2)
    result: dict[str, Any] = {**in_loop, "cores": os.cpu_count(), "cells": rows}
    if rows:
        named_rows = ((Cell(**row["cell"]).name, row) for row in rows)
        print_compared("the running pipeline and its simulation", "cell", named_rows, 3)
        names = [f"{name}_{kind}" for kind in ("err", "repeat") for name in METRICS.values()]
        result |= {name: max(row[name] for row in rows) for name in names}
    result["failed"] = sum(row["failed"] for row in (*rows, *in_loop.get("policies", ())))
    print_result(result, SEED)


if __name__ == "__main__":
    main()
