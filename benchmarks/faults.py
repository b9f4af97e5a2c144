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
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import requests
from rich.progress import Progress

from benchmarks.harness.answers import TOLERANCE, expected_answers, relative_difference
from benchmarks.harness.options import seed_option
from benchmarks.harness.report import print_figures, print_result
from benchmarks.harness.running import RunningGateway, local_gateway, running_pipeline
from gateway.client.client import GatewayClient
from smoe.deployment import DeploymentSettings


@dataclass
class Tally:
    """What the clients saw."""

    requests: int = 0
    failed: int = 0
    wrong: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, failure: str | None, *, wrong: bool = False) -> None:
        with self.lock:
            self.requests += 1
            if failure is not None:
                self.failed += 1
                self.reasons[failure] += 1
            elif wrong:
                self.wrong += 1


@click.command()
@click.option("--requests", "wanted", default=2000, show_default=True, type=click.IntRange(1), help="Requests in all.")
@click.option("--kills", default=20, show_default=True, type=click.IntRange(0), help="Workers killed meanwhile.")
@click.option("--clients", default=4, show_default=True, type=click.IntRange(1), help="Clients at once.")
@seed_option
def main(wanted: int, kills: int, clients: int, seed: int) -> None:
    """Kill replicas under load."""
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), wanted, kills, clients, seed)
    print_figures(None, result)
    print_result(result)


def measure(folder: Path, wanted: int, kills: int, clients: int, seed: int) -> dict[str, Any]:
    """Run until ``wanted`` requests were answered and ``kills`` replicas killed, whichever comes later."""
    deployment = DeploymentSettings(min_replicas=2, ingress_replicas=2)
    with running_pipeline(local_gateway(folder / "state"), deployment) as served:
        client, names = served.client, list(served.functions)
        texts, expected = expected_answers(served.directory)
        wait_two_each(served.gateway, client, names)
        tally, killed = Tally(), Counter[str]()
        enough = threading.Event()
        threads = [
            threading.Thread(
                target=send, args=(served.url, texts, expected.numpy(), tally, enough, seed + i), daemon=True
            )
            for i in range(clients)
        ]
        for thread in threads:
            thread.start()
        with Progress(transient=True) as bar:
            task = bar.add_task("requests under fire", total=wanted)
            killer = kill_replicas(served.gateway, client, names, kills, seed)
            due = wanted / (kills + 1)
            while tally.requests < wanted or sum(killed.values()) < kills:
                if tally.requests >= due * (sum(killed.values()) + 1) and sum(killed.values()) < kills:
                    killed[next(killer)] += 1
                bar.update(task, completed=tally.requests)
                time.sleep(0.02)
        enough.set()
        for thread in threads:
            thread.join(60)
    return {
        "requests": tally.requests,
        "kills": sum(killed.values()),
        "kills_of_ingress": killed[served.manifest.name],
        "failed": tally.failed,
        "wrong": tally.wrong,
        "reasons": dict(tally.reasons),
        "functions": len(names),
        "replicas_each": 2,
        "clients": clients,
        "seed": seed,
    }


def send(url: str, texts: list[str], expected: np.ndarray, tally: Tally, enough: threading.Event, seed: int) -> None:
    """One client: request after request, no retries, one kept-alive connection. ``expected`` [texts, d]."""
    session = requests.Session()
    session.trust_env = False
    choice = random.Random(seed)
    while not enough.is_set():
        index = choice.randrange(len(texts))
        try:
            reply = session.post(url, json={"inputs": texts[index]}, timeout=60)
        except requests.RequestException as error:
            tally.add(type(error).__name__)
            continue
        if reply.status_code != 200:
            tally.add(f"{reply.status_code}: {reply.text[:120]}")
            continue
        difference = relative_difference(reply.json()["embeddings"][0], expected[index])
        tally.add(None, wrong=not difference <= TOLERANCE)


def kill_replicas(
    gateway: RunningGateway, client: GatewayClient, names: list[str], kills: int, seed: int
) -> Iterator[str]:
    """Kill a random replica at each step and say whose it was; every fourth victim is an ingress.

    Never the last ready replica of a function: with one left there is nothing to repeat a call on.
    """
    choice = random.Random(seed)
    for number in itertools.count():
        while True:
            ready = ready_replicas(gateway, client)
            name = names[0] if number % 4 == 3 else choice.choice(names)
            pids = ready.get(name, [])
            if len(pids) >= 2:
                os.kill(choice.choice(pids), signal.SIGKILL)
                yield name
                break
            time.sleep(0.05)


def ready_replicas(gateway: RunningGateway, client: GatewayClient) -> dict[str, list[int]]:
    """Process ids of ready replicas by function: the owner of each address of the replica feed."""
    feed = requests.get(f"{client.url}/system/replicas", auth=gateway.auth, timeout=10).json()
    owners = listening_processes(gateway.pid)
    return {
        key.rsplit(".", 1)[0]: [
            owners[int(replica["address"].rsplit(":", 1)[1])]
            for replica in function["replicas"]
            if replica["state"] == "ready" and int(replica["address"].rsplit(":", 1)[1]) in owners
        ]
        for key, function in feed["functions"].items()
    }


def listening_processes(gateway_pid: int) -> dict[int, int]:
    """Listening port → process id, over the replicas below the gateway."""
    pid_of_port = {}
    for child in psutil.Process(gateway_pid).children(recursive=True):
        try:
            for connection in child.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    pid_of_port[connection.laddr.port] = child.pid
        except psutil.Error:
            continue
    return pid_of_port


def wait_two_each(gateway: RunningGateway, client: GatewayClient, names: list[str], timeout_s: float = 120.0) -> None:
    """Until every function has two ready replicas."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if all(len(ready_replicas(gateway, client).get(name, [])) >= 2 for name in names):
            return
        time.sleep(0.2)
    raise SystemExit("the functions did not reach two ready replicas each")


if __name__ == "__main__":
    main()
