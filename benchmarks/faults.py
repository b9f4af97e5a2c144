"""Replicas killed at random under load: does any request fail, is any answer wrong?

The default pipeline on the embedded gateway, two replicas of every function, the ingress too. Clients send requests
without any retry of their own and compare every answer with the whole model's, while replicas are killed with SIGKILL
one after the other.

    python -m benchmarks.faults [--requests 2000] [--kills 20] [--clients 4]
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.harness.answers import expected_answers
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_figures, print_result, progress
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from benchmarks.harness.scaling_watch import FeedWatch
from benchmarks.harness.steady_load import WRONG, Load, SteadyLoad
from smoe.deployment import DeploymentSettings

START_S = 120.0


@benchmark
@click.option("--requests", "wanted", default=2000, type=AT_LEAST_1, help="Requests in all.")
@click.option("--kills", default=20, type=click.IntRange(0), help="Workers killed meanwhile.")
@click.option("--clients", default=4, type=AT_LEAST_1, help="Clients at once.")
@seed_option
def main(wanted: int, kills: int, clients: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), wanted, kills, clients, seed)
    print_figures(None, result)
    print_result(result)


def measure(folder: Path, wanted: int, kills: int, clients: int, seed: int) -> dict[str, Any]:
    """Run until ``wanted`` requests were answered and ``kills`` replicas killed, whichever comes later."""
    deployment = DeploymentSettings(min_replicas=2, ingress_replicas=2)
    with running_pipeline(local_gateway(folder / "state"), deployment) as served:
        texts, expected = expected_answers(served.directory)
        with FeedWatch(served.gateway.connect) as watch:
            watch.until(lambda now: all(len(now.ready.get(name, ())) >= 2 for name in served.functions), START_S)
        killed = Counter[str]()
        killer = kill_replicas(served, seed)
        load = SteadyLoad(Load(served.url, texts, expected.numpy(), clients), folder)
        with load, progress(wanted) as show:
            while load.count < wanted or killed.total() < kills:
                if killed.total() < min(kills, load.count * (kills + 1) // wanted):
                    killed[next(killer)] += 1
                show("requests under fire", load.count)
                time.sleep(0.02)
    statuses = Counter(load.answers.status.tolist())
    reasons = {str(status): count for status, count in statuses.items() if status not in (200, WRONG)}
    return {
        "requests": statuses.total(),
        "kills": killed.total(),
        "kills_of_ingress": killed[served.manifest.name],
        "failed": sum(reasons.values()),
        "wrong": statuses[WRONG],
        "reasons": reasons,
        "functions": len(served.functions),
        "replicas_each": 2,
        "clients": clients,
        "seed": seed,
    }


def kill_replicas(served: RunningPipeline, seed: int) -> Iterator[str]:
    """Kill a random replica at each step and say whose it was; every fourth victim is an ingress.

    Never the last ready replica of a function: with one left there is nothing to repeat a call on.
    """
    choice = random.Random(seed)
    for number in itertools.count():
        while True:
            name = served.functions[0] if number % 4 == 3 else choice.choice(served.functions)
            pids = [pid for pid, owner in served.workers().items() if owner == name]
            if len(pids) >= 2:
                os.kill(choice.choice(pids), signal.SIGKILL)
                yield name
                break
            time.sleep(0.05)


if __name__ == "__main__":
    main()
