"""A running pipeline scaled up and down, and every worker exchanged, under steady load, without downtime.

The default pipeline on the embedded gateway answers closed-loop clients, who never retry and compare every answer with
the whole model's. Meanwhile every function goes from one replica to two, all workers are exchanged for new ones, and
every function goes back to one. ``scale_s``: from the first order until the last function has what was asked for.
``downtime_s``: time in which some function had no ready replica. ``throughput_ratio``: answers a second from the order
until the last old worker is gone, over those before.

    python -m benchmarks.live_scaling [--rounds 3] [--clients 4]
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.scaling_watch import FeedWatch, Picture, Scales, Weight
from benchmarks.steady_load import Seen, SteadyLoad
from moe.reference import WholeModel
from smoe import lifecycle
from smoe.deployment import DeploymentSettings, function_deployments
from smoe.gateway_client import GatewayClient
from smoe.pipelines import ensure_pipeline
from smoe.state import read_gateway
from traces.prompts import load_prompts

PRESET = "minilm"
TEXTS = 24
ORDERS_AT_ONCE = 8
EVENT_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Span:
    """One change of the whole pipeline, in seconds of the monotonic clock."""

    name: str
    before_s: float
    """Since when nothing was changing."""
    ordered_s: float
    ready_s: float
    """The last function had what was asked for."""
    settled_s: float
    """The last old worker was gone."""


class Orders:
    """Orders to the gateway for many functions at once, each thread with a connection of its own."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(ORDERS_AT_ONCE)

    def all(self, orders: Iterable[Callable[[GatewayClient], Any]]) -> None:
        """Give them all; returns when the gateway has taken the last."""
        for done in [self._pool.submit(self._one, order) for order in orders]:
            done.result()

    def close(self) -> None:
        self._pool.shutdown()

    def _one(self, order: Callable[[GatewayClient], Any]) -> None:
        if not hasattr(self._local, "client"):
            self._local.client = GatewayClient.from_state(self._state)
        order(self._local.client)


class Stage:
    """The pipeline on its gateway, the watch on its feed, and the changes that are measured."""

    def __init__(self, state: Path, deployments: list[dict[str, Any]], watch: FeedWatch, pause_s: float) -> None:
        self.names = [str(deployment["service"]) for deployment in deployments]
        self._deployments = deployments
        self._watch = watch
        self._pause_s = pause_s
        self._generation = 0
        self.orders = Orders(state)

    def scale(self, replicas: int) -> Span:
        """Every function to so many replicas."""
        orders = [lambda client, name=name: client.scale(name, replicas) for name in self.names]
        return self._change(
            f"to {replicas}", orders, lambda picture: all(len(picture.ready[name]) == replicas for name in self.names)
        )

    def exchange(self) -> Span:
        """Every worker for a new one."""
        self._generation += 1
        for deployment in self._deployments:
            deployment["envVars"]["smoe_generation"] = str(self._generation)
        old = self._watch.pictures[-1].ready
        orders = [lambda client, one=deployment: client.deploy(one) for deployment in self._deployments]

        def exchanged(picture: Picture) -> bool:
            return all(
                len(picture.ready[name]) == len(old[name]) and not picture.ready[name] & old[name]
                for name in self.names
            )

        return self._change("exchange", orders, exchanged)

    def _change(self, name: str, orders: list[Callable[[GatewayClient], Any]], done: Callable[[Picture], bool]) -> Span:
        before_s = time.monotonic()
        time.sleep(self._pause_s)
        ordered_s = time.monotonic()
        self.orders.all(orders)
        ready_s = self._watch.until(done, EVENT_TIMEOUT_S)
        settled_s = self._watch.until(
            lambda picture: all(picture.alive[name] == len(picture.ready[name]) for name in self.names),
            EVENT_TIMEOUT_S,
        )
        return Span(name, before_s, ordered_s, ready_s, settled_s)


def expectations(directory: Path) -> tuple[list[str], torch.Tensor]:
    """Texts and the whole model's embeddings of them, [texts, d]."""
    texts = list(load_prompts(None, 24).choose(TEXTS, 0))
    torch.set_num_threads(1)
    whole = WholeModel(directory)
    return texts, torch.cat([whole.embed([text]) for text in texts])


def measure(folder: Path, rounds: int, clients: int, pause_s: float) -> dict[str, Any]:
    """Up, exchange, down, ``rounds`` times with timings, then once more on the scales."""
    settings = lifecycle.GatewaySettings(folder / "state", port=0, metrics_port=0)
    directory, manifest = ensure_pipeline(PRESET, settings.pipelines)
    texts, expected = expectations(directory)
    process = lifecycle.start_gateway(settings, detach=False)
    try:
        client = GatewayClient.from_state(settings.state)
        deployment = DeploymentSettings()
        lifecycle.deploy_pipeline(client, manifest, deployment)
        url = f"{client.url}/function/{manifest.name}"
        with (
            SteadyLoad(url, texts, expected.numpy(), folder, clients=clients) as load,
            FeedWatch(client.url, settings.state) as watch,
        ):
            stage = Stage(settings.state, function_deployments(manifest, deployment), watch, pause_s)
            time.sleep(3.0)
            spans = [span for _ in range(rounds) for span in (stage.scale(2), stage.exchange(), stage.scale(1))]
            weights = {}
            pids = [int(read_gateway(settings.state)["pid"])]
            for name, change in (("to 2", lambda: stage.scale(2)), ("exchange", stage.exchange)):
                with Scales(pids) as scales:
                    span = change()
                    time.sleep(pause_s)
                weights[name] = (span, scales.weights)
            stage.orders.close()
        changes = [told(span, load.seen, watch, stage.names) for span in spans]
    finally:
        lifecycle.stop_process(process)
    memory = {name: weighed(span, found) for name, (span, found) in weights.items()}
    return summary(changes, memory, clients)


def told(span: Span, seen: Seen, watch: FeedWatch, names: list[str]) -> dict[str, Any]:
    """One change in numbers; a ratio is None where nothing was answered before it."""
    before = seen.per_second(span.before_s, span.ordered_s)
    during = seen.per_second(span.ordered_s, span.settled_s)
    return {
        "change": span.name,
        "scale_s": span.ready_s - span.ordered_s,
        "settled_s": span.settled_s - span.ordered_s,
        "downtime_s": watch.without_ready_s(names, span.ordered_s, span.settled_s),
        "failed": seen.between(span.ordered_s, span.settled_s + 1).failed,
        "per_second_before": before,
        "throughput_ratio": during / before if before else None,
        "p95_before_ms": seen.p95_ms(span.before_s, span.ordered_s),
        "p95_during_ms": seen.p95_ms(span.ordered_s, span.settled_s),
        "longest_gap_s": seen.longest_gap_s(span.ordered_s, span.settled_s),
    }


def weighed(span: Span, found: list[Weight]) -> dict[str, float]:
    """Peak memory of one change over the larger of what was in use before it and after it."""
    before = max(weight.total for weight in found if weight.at_s < span.ordered_s)
    after = found[-1].total
    peak = max(weight.total for weight in found)
    return {
        "before_mb": before / 1e6,
        "after_mb": after / 1e6,
        "peak_mb": peak / 1e6,
        "ratio": peak / max(before, after),
    }


def summary(changes: list[dict[str, Any]], memory: dict[str, dict[str, float]], clients: int) -> dict[str, Any]:
    """Medians by kind of change, and the worst of what must not happen."""
    kinds = {}
    for name in dict.fromkeys(change["change"] for change in changes):
        of_kind = [change for change in changes if change["change"] == name]
        kinds[name] = {
            key: round(statistics.median(values), 4)
            for key in of_kind[0]
            if key != "change" and (values := [one[key] for one in of_kind if one[key] is not None])
        }
    return {
        "scale_s": kinds["to 2"]["scale_s"],
        "downtime_s": round(max(change["downtime_s"] for change in changes), 4),
        "failed": sum(change["failed"] for change in changes),
        "throughput_ratio": kinds["to 2"].get("throughput_ratio"),
        "peak_memory_ratio": round(max(one["ratio"] for one in memory.values()), 4),
        "changes": kinds,
        "memory": {name: {key: round(value, 3) for key, value in one.items()} for name, one in memory.items()},
        "clients": clients,
        "cores": os.cpu_count(),
    }


def show(result: dict[str, Any]) -> None:
    """A table for people, on stderr."""
    table = Table("change", *next(iter(result["changes"].values())), title="Live scaling")
    for name, kind in result["changes"].items():
        table.add_row(name, *(f"{value:g}" for value in kind.values()))
    Console(stderr=True).print(table)


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Times each change is made.")
@click.option("--clients", default=4, show_default=True, type=click.IntRange(1), help="Closed-loop clients.")
@click.option("--pause", "pause_s", default=4.0, show_default=True, help="Steady seconds before each change.")
def main(rounds: int, clients: int, pause_s: float) -> None:
    """Scale the whole default pipeline up and down and exchange every worker, under steady load."""
    with tempfile.TemporaryDirectory(prefix="smoe-live-scaling-") as folder:
        result = measure(Path(folder), rounds, clients, pause_s)
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
