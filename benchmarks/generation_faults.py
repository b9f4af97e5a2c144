"""A tenth of all workers killed again and again under text generation: ``python -m benchmarks.generation_faults``.

A small random decoder on the embedded gateway with ``--instances`` instances and two replicas of every expert. What it
writes in a closed loop is measured first; then texts arrive at ``--load`` of that, as a Poisson process, as streams
that nobody repeats: for ``--calm`` minutes as they are, and for ``--minutes`` while, every ``--every`` seconds, SIGKILL
ends a tenth of all workers at once. Victims are drawn from all segments and experts, also the last replica of a
function. With ``--ingress`` they are drawn from the ingress, too, with which its streams end.

``failed``: streams without their whole text; ``wrong``: texts that are not what the model writes in one process.
``throughput_lost``: 1 - tokens written a second under fire over those in calm, each over those that were asked for, as
arrivals are random. ``stall_s``: the longest time in which no stream got a token. ``texts_per_s_at_most`` is measured
again at the end: where it differs, others used the machine meanwhile, and the load was another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import aiohttp
import click
import numpy as np

from benchmarks.generation_soak import expected
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from benchmarks.harness.streams import WHOLE, Stream, read, session
from functions.serving.settings import Rule
from smoe.deployment import DeploymentSettings

TOKENS, TEXTS, LONGEST = 24, 24, 200
KILLED = 0.1
CLIENTS = 16
"""Streams at once while what the pipeline can do is measured."""
TIMEOUT_S = 60.0


@dataclass
class Clients:
    """Streams to one pipeline."""

    url: str
    model: str
    texts: Sequence[tuple[list[int], str]]
    streams: list[Stream] = field(default_factory=list)

    async def one(self, session: aiohttp.ClientSession, due_s: float, place: int) -> None:
        prompt, wanted = self.texts[place % len(self.texts)]
        stream = Stream(due_s, len(wanted.split()))
        self.streams.append(stream)
        await read(session, self.url, {"model": self.model, "prompt": prompt, "max_tokens": TOKENS}, stream)
        if stream.outcome == WHOLE:
            stream.outcome = "right" if stream.text.strip() == wanted else "wrong"

    async def closed_loop(self, seconds: float) -> None:
        async def client(number: int) -> None:
            while time.monotonic() < ends_s:
                await self.one(shared, time.monotonic(), number)
                number += CLIENTS

        ends_s = time.monotonic() + seconds
        async with session(TIMEOUT_S) as shared:
            await asyncio.gather(*map(client, range(CLIENTS)))

    async def arrivals(self, per_s: float, seed: int, over: threading.Event) -> None:
        """Poisson arrivals until ``over``; then all are waited for."""
        chosen, due_s = random.Random(seed), time.monotonic()
        async with session(TIMEOUT_S) as shared, asyncio.TaskGroup() as group:
            while not over.is_set():
                group.create_task(self.one(shared, due_s, chosen.randrange(len(self.texts))))
                due_s += chosen.expovariate(per_s)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))


@contextlib.contextmanager
def arriving(clients: Clients, per_s: float, seed: int) -> Iterator[None]:
    """Texts arrive while the block lasts; its end waits for the last of them."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(clients.arrivals(per_s, seed, over)))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def summary(streams: Sequence[Stream], from_s: float, until_s: float) -> dict[str, Any]:
    """Figures of the texts that were due in this time."""
    due = [one for one in streams if from_s <= one.due_s < until_s]
    tokens_s = np.sort(np.array([moment for one in streams for moment in one.tokens_s], dtype=np.float64))
    inside = tokens_s[(tokens_s >= from_s) & (tokens_s < until_s)]
    ttft_s = [one.tokens_s[0] - one.due_s for one in due if one.tokens_s]
    gaps_s = np.concatenate([np.diff(one.tokens_s) for one in due] or [np.empty(0)])
    outcomes = Counter(one.outcome for one in due)
    return {
        "texts": len(due),
        "failed": sum(count for outcome, count in outcomes.items() if outcome not in ("right", "wrong")),
        "wrong": outcomes["wrong"],
        "reasons": {outcome: count for outcome, count in outcomes.items() if outcome != "right"},
        "tokens_per_s": len(inside) / (until_s - from_s),
        "tokens_asked_per_s": sum(one.asked for one in due) / (until_s - from_s),
        "ttft_ms_p50": _ms(ttft_s, 0.5),
        "ttft_ms_p95": _ms(ttft_s, 0.95),
        "token_ms_p99": _ms(gaps_s, 0.99),
        "stall_s": float(np.diff(np.concatenate([[from_s], inside, [until_s]])).max()),
    }


def _ms(seconds: Any, share: float) -> float | None:
    return round(1000 * float(np.quantile(seconds, share)), 1) if len(seconds) else None


def most_per_s(served: RunningPipeline, texts: Sequence[tuple[list[int], str]], seconds: float) -> float:
    """Texts a second in a closed loop."""
    clients, begun_s = Clients(served.client.url, served.manifest.name, texts), time.monotonic()
    asyncio.run(clients.closed_loop(seconds))
    return sum(one.outcome == "right" for one in clients.streams) / (time.monotonic() - begun_s)


def kill_workers(
    served: RunningPipeline, count: int, every_s: float, seconds: float, seed: int, *, ingress: bool
) -> Counter[str]:
    """Kill ``count`` workers every ``every_s`` for so many seconds, drawn by ``seed``; how many of which function."""
    chosen, killed, from_s = random.Random(seed), Counter[str](), time.monotonic()
    while (next_s := from_s + every_s * (killed.total() // count)) < from_s + seconds:
        time.sleep(max(0.0, next_s - time.monotonic()))
        alive = served.workers(ingress=ingress)
        for pid in chosen.sample(sorted(alive), min(count, len(alive))):
            os.kill(pid, signal.SIGKILL)
            killed[alive[pid]] += 1
    time.sleep(max(0.0, from_s + seconds - time.monotonic()))
    return killed


def measure(
    folder: Path, minutes: float, calm: float, every_s: float, instances: int, schedule: str, seed: int, *,
    load: float = 0.7, ingress: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """All figures."""
    texts = expected(folder, TEXTS, LONGEST, TOKENS, seed)
    deployment = DeploymentSettings(
        min_replicas=2,  # of every expert, so that a call whose worker dies has another to go to
        instances=instances,
        schedule=schedule,
        profiles=str(folder / "profiles"),
        kv_mib=8,
        ingress_replicas=1 + ingress,
    )
    with running_pipeline(local_gateway(folder / "state"), deployment, str(folder / "random")) as served:
        clients = Clients(served.client.url, served.manifest.name, texts)
        per_s = most_per_s(served, texts, 10 * min(1.0, calm))
        all_workers = served.workers(ingress=ingress)
        kill = math.ceil(KILLED * len(all_workers))
        with arriving(clients, load * per_s, seed):
            calm_from_s = time.monotonic()
            time.sleep(calm * 60)
            from_s = time.monotonic()
            killed = kill_workers(served, kill, every_s, minutes * 60, seed, ingress=ingress)
            until_s = time.monotonic()
        # Not less than at first: else what was killed has left something behind (workers, pages, open calls).
        again_per_s = most_per_s(served, texts, 10 * min(1.0, calm))
    before, under_fire = summary(clients.streams, calm_from_s, from_s), summary(clients.streams, from_s, until_s)
    written = [one["tokens_per_s"] / max(one["tokens_asked_per_s"], 1e-9) for one in (before, under_fire)]
    return {
        "calm": before,
        "killing": under_fire,
        "throughput_lost": 1 - written[1] / max(written[0], 1e-9),
        "texts_per_s_at_most": [per_s, again_per_s],
        "texts_per_s": load * per_s,
        "workers": len(all_workers),
        "killed": killed.total(),
        "killed_at_once": kill,
        "killed_of": dict(killed),
    }


@benchmark
@click.option("--minutes", default=10.0, type=click.FloatRange(0.05), help="How long workers are killed.")
@click.option("--calm", default=1.0, type=click.FloatRange(0.05), help="Minutes before, without kills.")
@click.option("--every", "every_s", default=60.0, type=click.FloatRange(1.0), help="Seconds between two kills.")
@click.option("--instances", default=3, type=AT_LEAST_1, help="Replicas of every segment.")
@click.option("--schedule", default="colocated", type=click.Choice(get_args(Rule)))
@click.option("--load", default=0.7, type=click.FloatRange(0.01, 1), help="Part of what it writes in a closed loop.")
@click.option("--ingress", is_flag=True, help="Kill the ingress, too; there are two of it then.")
@seed_option
def main(
    minutes: float,
    calm: float,
    every_s: float,
    instances: int,
    schedule: str,
    load: float,
    ingress: bool,
    seed: int,
) -> None:
    with run_folder("smoe-generation-faults-") as folder:
        result = measure(folder, minutes, calm, every_s, instances, schedule, seed, load=load, ingress=ingress)
    rows = [(name, str(result["calm"][name]), str(result["killing"][name])) for name in result["calm"]]
    print_table(f"{result['killed']} workers killed", ("figure", "calm", "killing"), rows)
    print_result({**result, "instances": instances, "schedule": schedule, "load": load})


if __name__ == "__main__":
    main()
