"""Replicas killed at random under load: does any request fail, is any answer wrong?

The default pipeline on the embedded gateway, two replicas of every function, the ingress too. Clients send requests
without any retry of their own and compare every answer with the whole model's, while replicas are killed with SIGKILL
one after the other.

    python -m benchmarks.faults [--requests 2000] [--kills 20] [--clients 4]
"""

from __future__ import annotations

import argparse
import itertools
import json
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

import psutil
import requests
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway, read_password
from moe.reference import WholeModel
from smoe import lifecycle
from smoe.deployment import DeploymentSettings
from smoe.pipelines import ensure_pipeline
from traces.prompts import load_prompts

TOLERANCE = 1e-4
"""Largest relative difference of a right answer: batches of different requests round differently."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="requests in all (%(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="workers killed meanwhile (%(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="clients at once (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.requests, options.kills, options.clients, options.seed)
    table = Table("measure", "value")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)
    print(json.dumps(result))


def measure(folder: Path, wanted: int, kills: int, clients: int, seed: int) -> dict[str, Any]:
    """Run until ``wanted`` requests were answered and ``kills`` replicas killed, whichever comes later."""
    settings = lifecycle.GatewaySettings(folder / "state", port=0, metrics_port=0)
    directory, manifest = ensure_pipeline("minilm", settings.pipelines)
    texts, expected = expectations(directory)
    process = lifecycle.start_gateway(settings, detach=False)
    try:
        client = GatewayClient.from_state(settings.state)
        deployment = DeploymentSettings(min_replicas=2, ingress_replicas=2)
        names = [entry["service"] for entry in lifecycle.deploy_pipeline(client, manifest, deployment)]
        wait_two_each(settings.state, client, names)
        tally, killed = Tally(), Counter[str]()
        enough = threading.Event()
        url = f"{client.url}/function/{manifest.name}"
        threads = [
            threading.Thread(target=send, args=(url, texts, expected, tally, enough, seed + i), daemon=True)
            for i in range(clients)
        ]
        for thread in threads:
            thread.start()
        with Progress(transient=True) as bar:
            task = bar.add_task("requests under fire", total=wanted)
            killer = kill_replicas(settings.state, client, names, kills, seed)
            due = wanted / (kills + 1)
            while tally.requests < wanted or sum(killed.values()) < kills:
                if tally.requests >= due * (sum(killed.values()) + 1) and sum(killed.values()) < kills:
                    killed[next(killer)] += 1
                bar.update(task, completed=tally.requests)
                time.sleep(0.02)
        enough.set()
        for thread in threads:
            thread.join(60)
    finally:
        lifecycle.stop_process(process)
    return {
        "requests": tally.requests,
        "kills": sum(killed.values()),
        "kills_of_ingress": killed[manifest.name],
        "failed": tally.failed,
        "wrong": tally.wrong,
        "reasons": dict(tally.reasons),
        "functions": len(names),
        "replicas_each": 2,
        "clients": clients,
        "seed": seed,
    }


def expectations(directory: Path, count: int = 24) -> tuple[list[str], torch.Tensor]:
    """Texts and the whole model's embeddings of them."""
    texts = list(load_prompts(None, 24).choose(count, 0))
    torch.set_num_threads(1)
    whole = WholeModel(directory)
    return texts, torch.stack([whole.embed([text])[0] for text in texts])


def send(url: str, texts: list[str], expected: torch.Tensor, tally: Tally, enough: threading.Event, seed: int) -> None:
    """One client: request after request, no retries, a kept-alive connection to the gateway."""
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
        answer = torch.tensor(reply.json()["embeddings"][0])
        difference = (answer - expected[index]).abs().max() / expected[index].abs().max()
        tally.add(None, wrong=not float(difference) <= TOLERANCE)


def kill_replicas(state: Path, client: GatewayClient, names: list[str], kills: int, seed: int) -> Iterator[str]:
    """Kill a random replica at each step and say whose it was; every fourth victim is an ingress.

    Never the last ready replica of a function: with one left there is nothing to repeat a call on.
    """
    choice = random.Random(seed)
    for number in itertools.count():
        while True:
            ready = ready_replicas(state, client)
            name = names[0] if number % 4 == 3 else choice.choice(names)
            found = ready.get(name, [])
            if len(found) >= 2:
                os.kill(choice.choice(found), signal.SIGKILL)
                yield name
                break
            time.sleep(0.05)


def ready_replicas(state: Path, client: GatewayClient) -> dict[str, list[int]]:
    """Process ids of ready replicas by function: the owner of each address of the replica feed."""
    auth = ("admin", read_password(state))
    feed = requests.get(f"{client.url}/system/replicas", auth=auth, timeout=10).json()
    owners = listening_processes(int(read_gateway(state)["pid"]))
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
    found = {}
    for child in psutil.Process(gateway_pid).children(recursive=True):
        try:
            for connection in child.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = child.pid
        except psutil.Error:
            continue
    return found


def wait_two_each(state: Path, client: GatewayClient, names: list[str], timeout_s: float = 120.0) -> None:
    """Until every function has two ready replicas."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if all(len(ready_replicas(state, client).get(name, [])) >= 2 for name in names):
            return
        time.sleep(0.2)
    raise SystemExit("the functions did not reach two ready replicas each")


if __name__ == "__main__":
    main()
