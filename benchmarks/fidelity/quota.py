"""What calls wait under a CPU limit: the kernel, its simulated rules, and the simulator's token bucket.

One process burns the CPU seconds of calls that come at random times, at half of what its limit gives it, under the
limit that the process backend sets, with the periods asked for. ``bucket``: ``throttle.burst_s``; nothing here was
fitted. Mean milliseconds; the last line is one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.harness.options import benchmark, listed, seed_option
from benchmarks.harness.report import print_result, print_table
from gateway.backends.process.cgroup.mounts import detect
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.measure.throttle import bucket_stream_s, burst_s, limit_of, stream_s

LOAD = 0.5
COLUMNS = ("cores", "period_ms", "call_ms", "calls", "measured", "p95", "rules", "bucket")


def calls_of(pipe: Connection) -> None:
    """For each (CPU seconds, arrivals [calls] in seconds) that comes, the seconds of each call; None ends it."""
    while (job := pipe.recv()) is not None:
        work_s, arrival_s = job
        begun_s, seconds = time.perf_counter(), []
        for arrival in arrival_s:
            time.sleep(max(0.0, begun_s + arrival - time.perf_counter()))
            until_s = time.thread_time() + work_s
            while time.thread_time() < until_s:
                pass
            seconds.append(time.perf_counter() - begun_s - arrival)
        pipe.send(seconds)


def row_of(pipe: Connection, cores: float, period_s: float, work_s: float, arrival_s: Sequence[float]) -> list[float]:
    """One point, in the order of ``COLUMNS``. ``arrival_s`` [calls]."""
    pipe.send((work_s, arrival_s))
    measured_s = np.array(pipe.recv())
    limit = limit_of(cores, this_machine().tick_s, period_s)
    rules_s = stream_s(work_s, limit, arrival_s)
    bucket_s = bucket_stream_s(work_s, limit.share, burst_s(limit), arrival_s)
    times_ms = 1000 * np.array([measured_s.mean(), np.quantile(measured_s, 0.95), rules_s, bucket_s])
    return [cores, round(1000 * limit.period_s, 1), 1000 * work_s, measured_s.size, *times_ms.round(1).tolist()]


@benchmark
@click.option("--cores", callback=listed(float), default="0.012,0.03", help="Real cores; comma list.")
@click.option("--calls-ms", callback=listed(float), default="0.5,1,2", help="CPU milliseconds of a call; comma list.")
@click.option("--periods-ms", callback=listed(float), default="10", help="Periods that are asked for; comma list.")
@click.option("--seconds", type=click.FloatRange(1), default=20.0, help="Of each point.")
@seed_option
def main(
    cores: tuple[float, ...], calls_ms: tuple[float, ...], periods_ms: tuple[float, ...], seconds: float, seed: int
) -> None:
    near, far = Pipe()
    process = Process(target=calls_of, args=(far,), daemon=True)
    process.start()
    rows: list[list[Any]] = []
    made = []
    try:
        for number, period_ms in enumerate(periods_ms):
            cgroups = detect(Path("/sys/fs/cgroup"), Path("/proc"), number, period_ms / 1000)
            made.append(cgroups)
            for file in cgroups.make("calls"):
                file.write_text(str(process.pid))
            for share in cores:
                if not cgroups.set_cpu("calls", share):
                    raise click.ClickException(f"this machine does not let us limit a process: {cgroups.notes}")
                for call_ms in calls_ms:
                    gaps = np.random.default_rng(seed).exponential(call_ms / 1000 / share / LOAD, 100_000)
                    arrival_s = np.cumsum(gaps)
                    arrivals = arrival_s[arrival_s < seconds].tolist()
                    rows.append(row_of(near, share, period_ms / 1000, call_ms / 1000, arrivals))
    finally:
        near.send(None)
        process.join()
        for cgroups in made:
            cgroups.close()
    print_table("calls under a CPU limit, mean ms", COLUMNS, rows)
    print_result({"points": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}, seed)


if __name__ == "__main__":
    main()
