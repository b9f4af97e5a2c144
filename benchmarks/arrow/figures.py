"""The paper's Figures 6, 7 and 8 from the simulator: ``python -m benchmarks.arrow.figures [--data FOLDER]``.

Part of the requests that keep TTFT and TPOT (targets of the paper's Table 1, 8B): over the rate of requests for Arrow,
the equal static split by minimal load and by round robin (the paper's ablation), colocated instances and this project's
``deadline`` (``attainment.png``); and over the number of instances at one rate (``instances.png``). Times of instances
are modelled, as in ``benchmarks.arrow``. Figure 9 (left), how long the scheduler takes, is ``benchmarks.arrow.live``'s
``decision_ms``; its right part needs parallelism of tensors, which is not modelled. Seeds: nothing is random. The last
line is one JSON object.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from benchmarks.arrow.__main__ import ATTAINMENT, PACED, TARGETS, Maker, makers, outcome_at, requests_of, work_rps
from benchmarks.harness.options import benchmark, data_option
from benchmarks.harness.report import picture, print_result, print_table
from functions.scheduling.pacing import Pacing
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import Hardware
from traces import catalog

TRACES = ("llm-code", "llm-conv")
SHARES = (0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0)
"""Rates, in parts of what takes all of the instances' time."""
INSTANCES = (2, 4, 6, 8)
AT = {"llm-code": 0.12, "llm-conv": 0.7}
"""The rate at which instances are counted, in parts of what takes all of eight instances' time."""
CHUNK = {"llm-code": 256, "llm-conv": 512}
"""Tokens of colocated instances' iterations: the best of ``benchmarks.arrow``."""
LINES = {"deadline": "-", "colocated": "--", "arrow": "-", "minimal load": ":", "round robin": ":"}


def attainment(name: str, line: str, requests: list[Request], rps: float, instances: int) -> float:
    """Part of the requests within both targets at ``rps`` requests a second."""
    targets: Targets = TARGETS[name]
    hardware = replace(Hardware(), chunk_tokens=CHUNK[name]) if line == "colocated" else Hardware()
    half = instances // 2
    which = f"minimal load {half}+{instances - half}" if line == "minimal load" else line
    make: Maker = makers(instances, hardware)[which]
    pacing = Pacing(hardware.profile(), targets) if which in PACED else None
    own_rps = len(requests) / requests[-1].arrival_s
    outcome = outcome_at(requests, rps / own_rps, make(targets), hardware, pacing)
    return outcome.attainment(targets.ttft_s, targets.tpot_s)


def draw(path: Path, label: str, curves: dict[str, dict[str, dict[float, float]]]) -> None:
    """One panel a trace, one line a scheduler."""
    with picture(path, 1, len(curves), figsize=(10, 3.4), sharey=True) as (_, axes):
        for axis, (name, lines) in zip(axes, curves.items(), strict=True):
            for line, points in lines.items():
                axis.plot(list(points), [100 * one for one in points.values()], LINES[line], marker="o", label=line)
            axis.axhline(100 * ATTAINMENT, color="grey", linewidth=0.8)
            axis.set(title=name, xlabel=label)
        axes[0].set_ylabel("requests within both targets, %")
        axes[0].legend()


@benchmark
@click.option("--requests", "most", type=click.IntRange(10, 20_000), default=1500, help="First of each trace.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), help="Folder of the pictures.")
@data_option
def main(most: int, out: Path, data: Path | None) -> None:
    folder = catalog.data_folder(data)
    if folder is None:
        raise click.UsageError("the figures need the public traces: --data, or `smoe traces fetch`")
    by_rate: dict[str, dict[str, dict[float, float]]] = {}
    by_instances: dict[str, dict[str, dict[float, float]]] = {}
    for name in TRACES:
        requests = requests_of(name, folder, most)
        full_rps = work_rps(requests, 8, Hardware())
        by_rate[name] = {
            line: {full_rps * share: attainment(name, line, requests, full_rps * share, 8) for share in SHARES}
            for line in LINES
        }
        rps = AT[name] * full_rps
        by_instances[name] = {
            line: {count: attainment(name, line, requests, rps, count) for count in INSTANCES} for line in LINES
        }
    draw(out / "attainment.png", "requests/s, eight instances", by_rate)
    draw(out / "instances.png", "instances", by_instances)
    for name, lines in by_rate.items():
        heads = ("scheduler", *(f"{rps:.1f}/s" for rps in lines["arrow"]))
        rows = [(line, *(f"{100 * one:.0f} %" for one in points.values())) for line, points in lines.items()]
        print_table(f"{name}: requests within both targets", heads, rows)
    print_result({"simulated": True, "requests": most, "by_rate": by_rate, "by_instances": by_instances}, seed=0)


if __name__ == "__main__":
    main()
