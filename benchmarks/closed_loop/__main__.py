"""Policies on the running pipeline under a load that moves: ``python -m benchmarks.closed_loop``.

The default pipeline on the embedded gateway under real limits. Poisson arrivals step between a low rate and eight times
as many (``benchmarks.harness.stepped_load``), the same prompts for every policy, in turns, several repeats; another
policy begins each repeat. Every run starts from the steady optimum: the fewest replicas of one core, the same for every
expert, with which the simulation keeps the SLO; ``static`` stays there, ``static-N`` has N of every expert and
``static-by-load-N`` N of the busiest, of the others by their tokens; with ``+burst`` any of them has the same standbys
for every expert. Policies scale experts and are billed for them; segments have what keeps them from being the
bottleneck. The controller reads a Prometheus of the run's own where there is one on PATH. The SLO is a multiple of a
pass's known work (``smoe.slo``). Where one replica of each expert would keep it no policy can be distinguished, and the
benchmark stops with a sentence.

Costs are per hour: all of a run, ``steady`` (windows half a minute or more after a step of the load) and
``transient`` (the others). ``full_machine`` is the part of a run's seconds that had at least 95 % of the cores busy.
Every policy is also simulated on the profile of this machine. The last line is one JSON object: ``cells`` (policy ×
repeat), ``policies`` (means with 95 % intervals over repeats), ``start_replicas``, ``cheapest`` (of the policies
whose P95 is within the SLO in the median of the repeats; null: none is), ``learnt_first`` (whether that is the learnt
one), ``failed``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.closed_loop.contenders import check_names, contender, turns
from benchmarks.closed_loop.runs import SEGMENT_CORES, SPACE, Run, check_period, measured, simulated
from benchmarks.fidelity.runs import routing_of
from benchmarks.harness.cores import FULL
from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark, data_option, listed, seed_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from benchmarks.harness.stepped_load import stepped
from evaluation.provenance import commit
from moe.manifest import Manifest
from moe.reference import WholeModel
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import fitting, open_profile
from simulation.profiles.model.pipeline import measured_workload
from simulation.workloads.workload import Workload
from smoe.commands.options import cpu_period_option
from smoe.deployment import DeploymentSettings
from smoe.errors import SmoeError
from smoe.prometheus import BINARY, prometheus
from smoe.slo import known_pass_s
from traces import catalog, prompts

LEARNT = "smoe"
POLICIES = (LEARNT, "staffing", "hpa", "kpa", "keda", "apa", "slo-aware", "last-window", "static")
MOST_REPLICAS = 8
PERIOD_S, SETTLED_S = 120.0, 30.0
MAX_WORDS = 24
INGRESS_CONCURRENCY = 512
MOST_FULL = 0.05
"""Part of a run's seconds: where the machine was full in more, the run judges the machine too."""
MOST_FAILED = 0.05
"""Part of the requests: P95 is of those that were answered."""
SUMMED = ("p95_over_slo", "violations", "provisioned", "steady", "transient", "busy", "full_machine")
"""Fields of an outcome that get an interval over the repeats."""


@dataclass(frozen=True)
class Setting:
    """The command's options, the same for all policies."""

    seconds: float
    """Length of a run."""
    mean_rps: float
    cpu_scale: float
    """Real cores per configured core."""
    cpu_period_ms: float
    """CFS period of CPU limits."""
    window_s: float
    """Between decisions."""
    slo_factor: float
    """SLO over a pass's known work."""
    profile: Path | None
    data: Path | None
    seed: int
    prometheus: bool
    """Whether the controller reads one, or scrapes by itself."""
    revision: str | None
    """Commit of the code."""

    def met(self, policy: str) -> dict[str, Any]:
        """What the result of ``policy`` depends on, its settings too, apart from the machine and its profile."""
        options = {name: value for name, value in asdict(self).items() if name not in ("profile", "data")}
        return {**options, "table": contender(policy, self.window_s, 1).table}


def run_all(
    policies: Sequence[str], repeats: int, setting: Setting, kept: Path | None, show: Callable[[str, float], object]
) -> tuple[list[dict[str, Any]], Run, int]:
    """(cells, what all met, replicas at the start). Policies take turns within each repeat, in an order that
    :func:`turns` gives. ``kept``: a file with a line for each cell; those that it has are not measured again."""
    cells = recorded(kept, policies, repeats, setting) if kept is not None and kept.exists() else []
    done = {(cell["policy"], cell["repeat"]) for cell in cells}
    with tempfile.TemporaryDirectory(prefix="smoe-closed-loop-") as name:
        full = 1 / setting.cpu_scale
        deployment = DeploymentSettings(
            cpu_cores=full / 3, ingress_cpu_cores=full, ingress_concurrency=INGRESS_CONCURRENCY
        )
        gateway = local_gateway(Path(name), cpu_scale=setting.cpu_scale, cpu_period_ms=setting.cpu_period_ms)
        with running_pipeline(gateway, deployment) as served, metrics(setting, served) as address:
            directory, password = served.directory, served.gateway.auth[1]
            run, counts = prepare(directory, served.manifest, setting)
            workload = workload_of(run, directory, counts)
            sent_s = np.array(run.trace.arrival_s, dtype=np.float64)

            def over_slo(count: int) -> float:
                one = contender(f"static-{count}", run.window_s, 1)
                return simulated(run, one, directory, workload, sent_s, counts, run.seed).p95_over_slo

            replicas = steady_replicas(over_slo, run.slo_s)
            for repeat in range(repeats):
                for number, policy in enumerate(turns(policies, repeat)):
                    if (policy, repeat) in done:
                        continue
                    show(f"{policy}, repeat {repeat + 1}", repeat * len(policies) + number)
                    one = contender(policy, run.window_s, replicas)
                    real, real_sent_s, _ = measured(run, one, directory, served.client, password, address)
                    model = simulated(run, one, directory, workload, real_sent_s, counts, run.seed + repeat)
                    cell = {"policy": policy, "repeat": repeat, "measured": asdict(real), "simulated": asdict(model)}
                    cell["setting"] = setting.met(policy)
                    cells.append(cell)
                    if kept is not None:
                        with kept.open("a") as file:
                            file.write(json.dumps(cell) + "\n")
    return cells, run, replicas


@contextmanager
def metrics(setting: Setting, served: RunningPipeline) -> Iterator[str | None]:
    """Address of the Prometheus that all policies read, None without one. Raises ClickException where it is asked for
    and cannot be had."""
    if not setting.prometheus:
        yield None
        return
    try:
        with prometheus(served.client.url, served.gateway.settings.state, setting.window_s) as address:
            yield address
    except SmoeError as error:
        raise click.ClickException(f"{error}; --no-prometheus has controllers scrape by themselves") from error


def recorded(kept: Path, policies: Sequence[str], repeats: int, setting: Setting) -> list[dict[str, Any]]:
    """Cells of the file that are asked for. Raises ClickException where some were measured under another setting, by
    other code, or with other settings of their policy."""
    cells = [json.loads(line) for line in kept.read_text().splitlines()]
    for cell in cells:
        if cell.get("setting") != (met := setting.met(cell["policy"])):
            raise click.ClickException(
                f"{kept}: {cell['policy']}, repeat {cell['repeat'] + 1}, met {cell.get('setting')}; asked for is "
                f"{met}: take another --record"
            )
    return [cell for cell in cells if cell["policy"] in policies and cell["repeat"] < repeats]


def prepare(directory: Path, manifest: Manifest, setting: Setting) -> tuple[Run, np.ndarray]:
    """What all policies meet, and the routing of its texts [1 + experts, requests]."""
    chosen = prompts.load_prompts(catalog.text_folder(catalog.data_folder(setting.data)), MAX_WORDS)
    trace = stepped(setting.seconds, setting.mean_rps, PERIOD_S, setting.seed)
    texts = tuple(chosen.choose(trace.requests, setting.seed))
    counts = routing_of(WholeModel(directory), texts)
    tokens, load = float(counts[0].mean()), counts[1:].sum(axis=1)
    slo_s = setting.slo_factor * known_pass_s(manifest, tokens, SEGMENT_CORES, setting.cpu_scale)
    profile = setting.profile or fitting(directory, this_machine())
    check_period(profile, setting.cpu_period_ms)
    run = Run(
        trace, texts, round(tokens), slo_s, setting.window_s, setting.cpu_scale, profile, setting.seed, PERIOD_S,
        SETTLED_S, load=tuple(load / load.max()),
    )  # fmt: skip
    return run, counts


def workload_of(run: Run, directory: Path, counts: np.ndarray) -> Workload:
    """The pipeline on the profile of this machine. ``counts`` [1 + experts, requests]."""
    return measured_workload(
        directory,
        open_profile(run.profile, directory, this_machine()),
        counts[0],
        slo_s=run.slo_s,
        cpu_scale=run.cpu_scale,
        space=SPACE,
        shared=True,
        segment_configuration=run.segment,
    )


def steady_replicas(p95_over_slo: Callable[[int], float], slo_s: float) -> int:
    """The fewest replicas of each expert with which the P95 is within the SLO (``p95_over_slo(replicas)`` at most 1).
    Raises ClickException where one is enough, and where ``MOST_REPLICAS`` are not."""
    over = p95_over_slo(1)
    if over <= 1:
        raise click.ClickException(
            f"the SLO of {1000 * slo_s:.0f} ms does not bind: with every expert at its cheapest P95 is {over:.2f} of "
            f"it, simulated, so no policy differs from never scaling at all; take a smaller --cpu-scale or "
            f"--slo-factor, or a higher --mean-rps"
        )
    for count in range(2, MOST_REPLICAS + 1):
        if p95_over_slo(count) <= 1:
            return count
    raise click.ClickException(
        f"no number of replicas keeps the SLO of {1000 * slo_s:.0f} ms, simulated: take a larger --slo-factor or "
        f"--cpu-scale, or a lower --mean-rps"
    )


def cheapest(cells: Sequence[Mapping[str, Any]]) -> str | None:
    """The policy of the least median cost among those whose P95 is within the SLO in the median of their repeats and
    of whose requests no more failed than may be slower; None where none is."""
    costs = {}
    for policy in dict.fromkeys(cell["policy"] for cell in cells):
        runs = [cell["measured"] for cell in cells if cell["policy"] == policy]
        failed = sum(run["failed"] for run in runs) / sum(run["failed"] + run["answered"] for run in runs)
        if failed <= MOST_FAILED and statistics.median(run["p95_over_slo"] for run in runs) <= 1:
            costs[policy] = statistics.median(run["provisioned"] for run in runs)
    return min(costs, key=costs.__getitem__, default=None)


def summaries(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each policy: the means over its repeats of every field of ``SUMMED``, measured and simulated, and the
    half widths of the 95 % intervals of the measured ones (Student's t; None of one repeat)."""
    rows = []
    for policy in dict.fromkeys(cell["policy"] for cell in cells):
        runs = [cell for cell in cells if cell["policy"] == policy]
        row: dict[str, Any] = {"policy": policy, "repeats": len(runs)}
        for field in SUMMED:
            for side in ("measured", "simulated"):
                values = np.array([cell[side][field] for cell in runs if cell[side][field] is not None])
                row[f"{field}_{side}"] = round(float(values.mean()), 4) if values.size else None
                if side == "measured":
                    row[f"{field}_half_width"] = half_width(values)
        rows.append(row)
    return rows


def half_width(values: np.ndarray) -> float | None:
    """Half the width of the 95 % interval of a mean, Student's t. ``values`` [repeats] float64."""
    if values.size < 2:
        return None
    from scipy import stats

    return round(float(stats.t.ppf(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size)), 4)


def print_policies(rows: Sequence[Mapping[str, Any]], slo_s: float) -> None:
    """For people."""

    def figure(row: Mapping[str, Any], field: str) -> str:
        if row[f"{field}_measured"] is None:
            return "–"
        width = row[f"{field}_half_width"]
        return f"{row[f'{field}_measured']:.2f}" + ("" if width is None else f" ± {width:.2f}")

    shown = {
        "P95/SLO": "p95_over_slo", "windows over": "violations", "cost/h": "provisioned", "steady": "steady",
        "transient": "transient", "machine full": "full_machine",
    }  # fmt: skip
    heads = ("policy", *shown, "simulated P95/SLO, cost")
    lines = [
        (
            row["policy"],
            *(figure(row, field) for field in shown.values()),
            f"{row['p95_over_slo_simulated']:.2f}, {row['provisioned_simulated']:.2f}",
        )
        for row in rows
    ]
    print_table(f"policies on the running pipeline; SLO: P95 within {1000 * slo_s:.0f} ms", heads, lines)
    full = [row["policy"] for row in rows if (row["full_machine_measured"] or 0.0) > MOST_FULL]
    if full:
        click.echo(
            f"note: {FULL:.0%} or more of the cores were busy in more than {MOST_FULL:.0%} of the seconds of "
            f"{', '.join(full)}: such a run judges the machine and not only its policy; take a lower --mean-rps"
        )


@benchmark
@click.option("--policies", callback=listed(), default=",".join(POLICIES), help="Comma list (docs/policies.md).")
@click.option("--repeats", default=5, type=AT_LEAST_1, help="Runs of each policy.")
@click.option("--seconds", default=600.0, type=click.FloatRange(PERIOD_S), help="Length of a run in seconds.")
@click.option("--mean-rps", default=10.0, type=click.FloatRange(0.1), help="Requests per second on average.")
@click.option("--cpu-scale", default=0.01, type=click.FloatRange(0.001, 10), help="Real cores per configured core.")
@cpu_period_option
@click.option("--interval", "window_s", default=2.0, type=click.FloatRange(0.5), help="Seconds between decisions.")
@click.option("--slo-factor", default=1.7, help="SLO over a pass's known work at the limits of the start.")
@click.option("--profile", type=PRESENT, help="Measured profile. [default: this machine's in simulation/profiles/data]")
@click.option(
    "--prometheus/--no-prometheus",
    default=shutil.which(BINARY) is not None,
    help="Metrics through a real one.  [default: where it is on PATH]",
)
@click.option("--record", type=click.Path(path_type=Path), help="Keep what was measured here, and go on from there.")
@data_option
@seed_option
def main(policies: tuple[str, ...], repeats: int, record: Path | None, **options: Any) -> None:
    check_names(policies)
    with progress(repeats * len(policies)) as show:
        cells, run, replicas = run_all(policies, repeats, Setting(**options, revision=commit()), record, show)
    rows = summaries(cells)
    print_policies(rows, run.slo_s)
    failed = sum(cell["measured"]["failed"] for cell in cells)
    first = cheapest(cells)
    result = {"cheapest": first, "learnt_first": first == LEARNT, "failed": failed, "slo_ms": 1000 * run.slo_s}
    print_result({**result, "start_replicas": replicas, "cores": os.cpu_count(), "policies": rows, "cells": cells})


if __name__ == "__main__":
    main()
