"""The paper's Figures 6 to 9 from the simulator: ``python -m benchmarks.arrow.figures [--data FOLDER]``.

Part of the requests that keep TTFT and TPOT (targets of the paper's Table 1, 8B): over the rate of requests for Arrow,
the equal static split by minimal load and by round robin (the paper's ablation), colocated instances and this project's
``deadline`` (``attainment.png``); and over the number of instances at one rate (``instances.png``). Times of instances
are modelled, as in ``benchmarks.arrow``. Figure 9 (``unequal.png``): CPU time of the scheduler's choices by rate on
the conversation trace, which is measured; and attainment where four instances of one GPU prefill and two of two GPUs
decode (:func:`unequal`). Tokenization is not timed, as traces hold no texts. Seeds: nothing is random. The last
line is one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks.arrow.__main__ import ATTAINMENT, PACED, TARGETS, Maker, makers, outcome_at, requests_of, work_rps
from benchmarks.harness.options import benchmark, data_option
from benchmarks.harness.report import picture, print_result, print_table
from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Scheduler
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import MinimalLoad
from functions.scheduling.predictor import Profile
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
SPLIT = (4, 2)
"""Instances of one GPU that prefill, and of two GPUs that decode, in Figure 9."""
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


def unequal() -> dict[int, Hardware]:
    """Instances of one GPU for prefill, and of two for decode: half the time per token and for reading weights at 85 %
    efficiency, twice the room less one copy of the weights (16 GB)."""
    one = Hardware()
    parts = 1 / (2 * 0.85)
    two = replace(
        one,
        iteration_s=parts * one.iteration_s,
        token_s=parts * one.token_s,
        attention_s=parts * one.attention_s,
        context_s=parts * one.context_s,
        kv_tokens=2 * one.kv_tokens + 16_000_000_000 // one.token_bytes,
    )
    return {**dict.fromkeys(range(SPLIT[0]), one), **dict.fromkeys(range(SPLIT[0], sum(SPLIT)), two)}


def on_two_kinds(name: str, requests: list[Request], rates: Iterable[float]) -> dict[str, dict[float, float]]:
    """Part within both targets by rate on :func:`unequal`, under Arrow and with static roles."""
    targets, hardware = TARGETS[name], unequal()
    profiles = {which: one.profile() for which, one in hardware.items()}
    own_rps = len(requests) / requests[-1].arrival_s

    def at(rule: type[Scheduler], rps: float) -> float:
        outcome = outcome_at(requests, rps / own_rps, rule(profiles, targets, SPLIT[0]), hardware)
        return outcome.attainment(targets.ttft_s, targets.tpot_s)

    rules: dict[str, type[Scheduler]] = {"arrow": Arrow, "minimal load": MinimalLoad}
    return {line: {rps: at(rule, rps) for rps in rates} for line, rule in rules.items()}


class Timed(Arrow):
    """Arrow with the CPU time of each of its choices, in seconds."""

    def __init__(self, profiles: dict[int, Profile], targets: Targets, prefill: int) -> None:
        super().__init__(profiles, targets, prefill)
        self.taken_s: list[float] = []

    def prefill(self, request: int, tokens: int, now_s: float) -> int:
        begun_s = time.thread_time()
        name = super().prefill(request, tokens, now_s)
        self.taken_s.append(time.thread_time() - begun_s)
        return name

    def decode(self, request: int, now_s: float) -> int:
        begun_s = time.thread_time()
        name = super().decode(request, now_s)
        self.taken_s.append(time.thread_time() - begun_s)
        return name


def scheduling_ms(requests: list[Request], rps: float) -> dict[str, float]:
    """Median and 99th percentile of the choices at ``rps``, in milliseconds, eight instances."""
    scheduler = Timed(dict.fromkeys(range(8), Hardware().profile()), TARGETS["llm-conv"], 4)
    outcome_at(requests, rps * requests[-1].arrival_s / len(requests), scheduler, Hardware())
    return {f"p{q}": 1000 * float(np.percentile(scheduler.taken_s, q)) for q in (50, 99)}


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
    kinds = {name: on_two_kinds(name, requests_of(name, folder, most), by_rate[name]["arrow"]) for name in TRACES}
    conversation = requests_of("llm-conv", folder, most)
    taken = {rps: scheduling_ms(conversation, rps) for rps in by_rate["llm-conv"]["arrow"]}
    draw(out / "unequal.png", "requests/s, 4 × 1 and 2 × 2 GPUs", kinds)
    draw(out / "attainment.png", "requests/s, eight instances", by_rate)
    draw(out / "instances.png", "instances", by_instances)
    for name, lines in by_rate.items():
        heads = ("scheduler", *(f"{rps:.1f}/s" for rps in lines["arrow"]))
        rows = [(line, *(f"{100 * one:.0f} %" for one in points.values())) for line, points in lines.items()]
        print_table(f"{name}: requests within both targets", heads, rows)
    print_table(
        "Figure 9: CPU time of a choice, ms (measured)",
        ("", *(f"{rps:.1f}/s" for rps in taken)),
        [(which, *(f"{one[which]:.3f}" for one in taken.values())) for which in ("p50", "p99")],
    )
    for name, lines in kinds.items():
        rows = [(line, *(f"{100 * one:.0f} %" for one in points.values())) for line, points in lines.items()]
        print_table(
            f"Figure 9, {name}: 4 × 1 and 2 × 2 GPUs", ("scheduler", *(f"{one:.1f}/s" for one in lines["arrow"])), rows
        )
    shown = {"simulated": True, "requests": most, "by_rate": by_rate, "by_instances": by_instances}
    print_result({**shown, "unequal": kinds, "scheduling_ms": taken}, seed=0)


if __name__ == "__main__":
    main()
