"""A running pipeline scaled up and down, and every worker exchanged, under steady load, without downtime.

The default pipeline on the embedded gateway, on the first of two nodes, answers closed-loop clients who never retry and
compare every answer with the whole model's. Meanwhile every function gets a second replica on the other node, whose
memory is empty, and gives it back; gets and gives back one in place; and every worker is exchanged for a new one. Rows
below the first lack one part after the other, as Table 1 of the ElasticMoE paper has it (cumulative), and three ways to
scale without any of them follow. Nodes are weights managers with a link of limited bandwidth between them.

``scale_s``: from the order until the last function has what was asked for. ``downtime_s``: time in which some function
had no ready replica. ``throughput_ratio``: answers a second from the order until the last old worker is gone, over
those before. ``peak_memory_ratio``: peak of a change over the larger of what is in use before and after it, in a round
of its own, because weighing slows the machine. ``throughput_ratio_table_2``: the same for the seconds that Table 2 of
the paper looks at, from 5 s before the change until 5 s after the longest change of all, the cold restart (which is
therefore measured first); ``throughput_ratio`` is the harder of the two.

Closed-loop clients keep every core busy, so whatever a change takes is missing elsewhere. The row ``at-load`` is the
full system as services are run: requests at even intervals, ``--load`` of what ``full`` answered a second before its
changes, however long answers take. Its throughput is looked at for two seconds at least, as half a second holds a
dozen requests; its P95 are of the change alone.

    python -m benchmarks.live_scaling [--rounds 3] [--rows full,at-load,no-standbys,...]
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from benchmarks.harness.answers import expected_answers
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed
from benchmarks.harness.report import print_result, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.scaling_watch import Scales
from benchmarks.live_scaling.report import row, show, summary
from benchmarks.live_scaling.rows import (
    FORKED,
    FRESH,
    PRIVATE,
    SLOW_SCALES_S,
    TIMEOUT_S,
    Measured,
    Setting,
    Span,
    deployment,
    gateway,
    stage,
)
from smoe import lifecycle
from smoe.pipelines import ensure_pipeline

PRESET = "minilm"
LEAST_S = 2.0
"""Seconds that the throughput of a change is looked at for, at least, in the row at-load."""


def full(setting: Setting, rounds: int) -> Measured:
    """Everything: shared memory, peer copies, standbys, mapped weights."""
    return _rounds(setting, "full", "", _functions(setting), rounds, peers=True, in_place=True)


def at_load(setting: Setting, rounds: int) -> Measured:
    """The same at ``load`` of what ``full`` could answer, so that processors have time to spare."""
    steady = replace(setting, rate=setting.load * setting.capacity, window_s=0.0)
    measured = _rounds(steady, "at-load", "", _functions(setting), rounds, peers=True, in_place=True)
    measured.least_s = LEAST_S
    return measured


def no_pre_initialisation(setting: Setting, rounds: int) -> Measured:
    """And each worker is a Python of its own that imports everything."""
    measured = Measured()
    with stage(setting, "no-pre-initialisation", FRESH, 0, peers=False, measured=measured) as here:
        here.start_fresh_from_now_on()
        here.time_and_weigh(here.onto_other_node, measured)
    return measured


def cold_restart(setting: Setting, rounds: int) -> Measured:
    """And weights are nobody's but the worker's, so the old ones stop before the larger configuration starts.

    The last row of the ablation and the baseline of this name are one thing: nothing is left of live scaling.
    """
    measured = Measured()
    with stage(setting, "cold-restart", FRESH, 0, peers=False, measured=measured) as here:
        here.start_fresh_from_now_on()
        here.look_around(lambda: here.time_and_weigh(lambda: here.cold_restart(FRESH, 2), measured), measured)
    return measured


Way = Callable[[Setting, int], Measured]


def _lacking(name: str, image: str, *, peers: bool = False, standbys: bool = True) -> Way:
    def measure(setting: Setting, rounds: int) -> Measured:
        return _rounds(setting, name, image, _functions(setting) if standbys else 0, rounds, peers=peers)

    return measure


ROWS: dict[str, Way] = {
    "full": full,
    "at-load": at_load,
    # workers copy weights into memory of their own
    "no-shared-allocation": _lacking("no-shared-allocation", PRIVATE, peers=True),
    # and the other node reads all weights from disk
    "no-peer-copy": _lacking("no-peer-copy", PRIVATE),
    # and workers are forked from the warm parent when they are wanted (not a row of the paper's)
    "no-standbys": _lacking("no-standbys", FORKED, standbys=False),
    "no-pre-initialisation": no_pre_initialisation,
    "no-zero-copy": cold_restart,
    "cold-restart": cold_restart,
    # baseline (horizontal): a second whole pipeline on new hardware, nothing prepared
    "replica": lambda setting, _: _second(setting, "replica", 1),
    # baseline: the larger configuration started whole next to the old one, which goes when it is ready
    "colocated": lambda setting, _: _second(setting, "colocated", 2),
}


def _functions(setting: Setting) -> int:
    """As many standbys as the largest change starts: every function one, and the ingress."""
    return len(setting.manifest.nodes) + 1


def _rounds(
    setting: Setting, name: str, image: str, standbys: int, rounds: int, *, peers: bool, in_place: bool = False
) -> Measured:
    measured = Measured()
    with stage(setting, name, image, standbys, peers=peers, measured=measured) as here:
        for _ in range(rounds):
            measured.spans += [here.onto_other_node(), here.home_again()]
            if in_place:
                measured.spans += [here.up_in_place(), here.exchange(), here.down_in_place()]
        if in_place:
            here.weigh("up in place", here.up_in_place, measured)
            here.weigh("exchange", here.exchange, measured)
            here.home_again()
        here.weigh("up", here.onto_other_node, measured)
        if setting.window_s:
            here.home_again()
            here.look_around(here.onto_other_node, measured, setting.window_s)
    return measured


def _second(setting: Setting, name: str, replicas: int) -> Measured:
    """A second gateway brings up a pipeline from nothing while the first serves."""
    measured = Measured()
    with stage(setting, name, "", 0, peers=False, measured=measured) as here:
        before_s = time.monotonic()
        time.sleep(setting.pause_s)
        first = here.running
        with Scales([first.pid], first.folders) as alone:
            time.sleep(0.5)
        ordered_s = time.monotonic()
        with (
            gateway(setting, f"{name}-second", 0, ()) as second,
            Scales([first.pid, second.pid], first.folders, pause_s=SLOW_SCALES_S) as both,
        ):
            client = second.connect()
            lifecycle.deploy_pipeline(client, setting.manifest, deployment(FRESH, replicas), timeout_s=TIMEOUT_S)
            while any(f.get("availableReplicas", 0) < replicas for f in client.functions()):
                time.sleep(0.1)
            ready_s = time.monotonic()
            time.sleep(SLOW_SCALES_S)
        span = Span("up", before_s, ordered_s, ready_s, ready_s)
        measured.spans.append(span)
        measured.weights["up"] = (span, [*alone.weights, *both.weights])
    return measured


@benchmark
@click.option("--rows", "names", callback=listed(choices=ROWS), default=",".join(ROWS), help="Rows to measure.")
@click.option("--rounds", default=3, type=AT_LEAST_1, help="Times each quick change is made.")
@click.option("--clients", default=4, type=AT_LEAST_1, help="Closed-loop clients.")
@click.option("--rate", default=0.0, help="Requests a second at even intervals in place of clients.")
@click.option(
    "--load", default=0.7, type=click.FloatRange(0.05, 1), help="Of at-load: requests/s over full's answers/s."
)
@click.option("--pause", "pause_s", default=4.0, help="Steady seconds before each change.")
@click.option("--start-gap", "start_gap_s", default=0.01, help="Seconds between two starts, and between two ends.")
@click.option("--link", "link_bytes_per_s", default=1.25e9, help="Bytes a second between nodes (10 Gbit/s).")
@click.option("--disk", "disk_bytes_per_s", default=1.25e8, help="Bytes a second of a node's disk.")
def main(names: tuple[str, ...], rounds: int, rate: float, **options: Any) -> None:
    if "at-load" in names and "full" not in names[: names.index("at-load")]:
        raise click.BadParameter("at-load takes its rate from full: name full before it", param_hint="--rows")
    if "at-load" in names and rate:
        raise click.BadParameter("at-load takes its rate from what clients get of full", param_hint="--rate")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with run_folder("smoe-live-scaling-") as folder:
        directory, manifest = ensure_pipeline(PRESET, folder / "pipelines")
        texts, expected = expected_answers(directory)
        setting = Setting(folder, directory, manifest, texts, expected.numpy(), rate=rate, **options)
        rows: dict[str, dict[str, Any]] = {}
        row_of: dict[Way, dict[str, Any]] = {}
        with progress(len(names)) as show_progress:
            for number, one in enumerate(sorted(names, key=lambda name: ROWS[name] is not cold_restart)):
                show_progress(one, number)
                if ROWS[one] not in row_of:
                    row_of[ROWS[one]] = row(ROWS[one](setting, rounds))
                rows[one] = figures = row_of[ROWS[one]]
                click.echo(f"{one}: up in {figures['scale_s']:.2f} s, {figures['failed']} failed", err=True)
                setting = replace(setting, window_s=figures.get("window_s", setting.window_s))
                if one == "full":
                    setting = replace(setting, capacity=figures["changes"]["up"]["per_second_before"])
        rows = {name: rows[name] for name in names}
    result = summary(rows, setting, rounds)
    show(result)
    print_result(result)


if __name__ == "__main__":
    main()
