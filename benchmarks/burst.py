"""Burst activation on the running pipeline: ``python -m benchmarks.burst``.

The default pipeline on the embedded gateway under real limits, one replica of each expert. Requests arrive as a Poisson
process whose rate rises to ten times itself for three seconds at random times. The same arrivals meet the experts
without standbys, and with some that the ingress activates. What a token costs each expert is stated to it, by the CPU
time of the run without, as the policy ``staffing`` states it; ``--unstated``: the ingress measures it by itself.

``activation_ms``: from the request that finds too few replicas until the first call begins at an activated one;
``open_ms``: until those of all layers can be called; ``next_ms``: until the next call is for one of its functions,
whichever replica gets it; ``waited_ms_p99``: from that call until the first at a standby; ``answer_ms``: until the
first such call was answered, its own time included. These are of the activations that begin in a burst;
``between_bursts`` has the others, often of one function for which no call comes for a while. ``p95_ratio``: P95 of
requests that arrive in a burst, over that of those between bursts (a second after one left out). Costs are the
experts' in an hour: always-running replicas and standbys (``provisioned``), of which ``standby`` for standbys,
waiting and activated, and ``busy``, Eq. (7).
The last line is one JSON object.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
import requests

from autoscaler.contract import Burst, Configuration, Topology
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.policy.work import Work, stating
from autoscaler.prices import function_cost, load_prices, summed
from autoscaler.state.features import complete
from autoscaler.topology import load_topology
from benchmarks.harness.options import benchmark, data_option, seed_option
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.report import in_words, print_result, print_table, progress
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from platform_words.headers import CALLER_KEY
from smoe.deployment import DeploymentSettings
from traces import prompts
from traces.model import FloatArray, Trace, make_trace

STARTING = Configuration(memory_mb=256, cpu_cores=40.0, gpu_share=0.0, replicas=1, concurrency=4)
"""Every expert while it starts: starting takes more CPU than a replica is to have."""
BURST_S = 3.0
TIMES = 10.0
"""Rate within a burst over the rate between bursts."""
TIMES_OF = {
    "open": "open_s", "next": "next_call_s", "activation": "first_call_s", "answer": "first_answer_s"
}  # fmt: skip
"""Names of times in the result, and fields of an activation (``functions.dispatch.replicas.Opening``)."""
SLOWEST = 5
"""Activations that the result lists one by one."""
SETTLED_S = 1.0
"""After a burst until requests count as between bursts: what has piled up is answered meanwhile."""
WARM_S = 12.0
"""Before the first burst: what a token costs is measured every 5 s."""
MAX_WORDS = 48
WARM_REQUESTS, WARM_CLIENTS = 120, 12
IDLE_S = 3.0
"""Before a run, until what the last change set off is done."""
START_S = 180.0


@dataclass(frozen=True)
class Load:
    """Arrivals and when bursts begin, in seconds of the trace."""

    trace: Trace
    begins_s: FloatArray
    """[bursts] float64."""

    def within(self, arrival_s: FloatArray, more_s: float = 0.0) -> np.ndarray:
        """[requests] bool: those that arrive in a burst, or within ``more_s`` after one."""
        since_s = arrival_s[:, None] - self.begins_s
        return np.asarray(((since_s >= 0) & (since_s < BURST_S + more_s)).any(axis=1))


@dataclass(frozen=True)
class Side:
    """What came of one run, in milliseconds, and in the price sheet's currency per hour."""

    p95_burst_ms: float
    p95_between_ms: float
    p95_ratio: float
    p50_between_ms: float
    provisioned: float | None
    busy: float | None
    standby: float | None
    activated_share: float
    """The part of the standbys' time in which they were activated."""
    answered: int
    failed: int


def draw(seconds: float, base_rps: float, bursts: int, seed: int) -> Load:
    """Bursts at random times, each apart from the next by its own length or more; Poisson arrivals."""
    rng = np.random.default_rng(seed)
    free_s = seconds - WARM_S - bursts * 2 * BURST_S
    if free_s < 0:
        raise click.UsageError(f"{bursts} bursts take {seconds - free_s:.0f} s or more; --seconds is {seconds:g}")
    begins_s = WARM_S + np.sort(rng.uniform(0, free_s, bursts)) + 2 * BURST_S * np.arange(bursts)
    parts = [rng.uniform(0, seconds, rng.poisson(base_rps * seconds))]
    parts += [begin + rng.uniform(0, BURST_S, rng.poisson((TIMES - 1) * base_rps * BURST_S)) for begin in begins_s]
    arrival_s = np.sort(np.concatenate(parts))
    source = f"synthetic: Poisson, {base_rps:g}/s, {TIMES:g} times as many for {BURST_S:g} s from {begins_s.round(2)}"
    return Load(make_trace(arrival_s, duration_s=seconds, source=source), begins_s)


def warm(running: RunningPipeline, functions: set[str], standbys: int, texts: list[str]) -> None:
    """Have every replica and standby serve calls: a process's first ones are slower, by much under a small limit."""
    order = {"sender": "warm", "lease_s": 60, "functions": dict.fromkeys(functions, standbys)}
    feed = f"{running.gateway.connect().url}/system/replicas"
    requests.post(feed, json=order, auth=running.gateway.auth, timeout=30).raise_for_status()
    time.sleep(0.5)  # the ingress learns of them by the feed
    with ThreadPoolExecutor(WARM_CLIENTS) as clients:
        for reply in clients.map(lambda text: requests.post(running.url, json={"inputs": text}, timeout=100), texts):
            reply.raise_for_status()
    order = {**order, "functions": {}}
    requests.post(feed, json=order, auth=running.gateway.auth, timeout=30).raise_for_status()


def deploy(
    running: RunningPipeline, topology: Topology, target: Configuration, texts: list[str], costs: Mapping[str, float]
) -> None:
    """Every expert with ``target`` and all of its replicas there, which have served ``texts``. ``costs``: seconds of a
    replica a token, by function; stated in the rule of its standbys."""
    platform = OpenFaasPlatform(running.gateway.connect().url, topology.pipeline, running.gateway.auth)
    experts = {node.function for node in topology.nodes if node.kind == "expert"}
    for configuration in (replace(target, cpu_cores=STARTING.cpu_cores), target):
        for function, present in platform.configurations().items():
            wanted = stating(configuration, costs.get(function))
            if function in experts and present != wanted:
                platform.apply(function, present, wanted)
        wait_started(running, experts, target.replicas + target.standbys)
        if configuration.cpu_cores == STARTING.cpu_cores:
            warm(running, experts, target.standbys, texts)
    time.sleep(IDLE_S)


def wait_started(running: RunningPipeline, functions: set[str], replicas: int) -> None:
    """Raises click.ClickException where they do not start."""
    end_s = time.monotonic() + START_S
    while True:
        feed = running.client.replicas()
        states = [[one["state"] for one in feed[name]] for name in functions]
        if all(len(one) == replicas and {"ready", "standby"}.issuperset(one) for one in states):
            return
        if time.monotonic() > end_s:
            raise click.ClickException(f"replicas and standbys did not start within {START_S:g} s")
        time.sleep(0.2)


def measured(
    running: RunningPipeline, topology: Topology, load: Load, texts: list[str]
) -> tuple[Side, Mapping[str, float], float]:
    """One run on the pipeline as it is deployed, seconds of a replica that a token cost each function in it, and when
    its trace began, by the machine's monotonic clock."""
    prices = load_prices()
    platform = OpenFaasPlatform(running.gateway.connect().url, topology.pipeline, running.gateway.auth)
    monitor = Monitor(topology, ScrapeSource(running.client.url, running.gateway.auth, stale_s=600.0))
    begun_s = time.time()
    monitor.observe(begun_s, 1.0)
    with ReplayProcess(running.url) as sender:
        sent_s, result = sender.replay(load.trace, texts)
    now_s = time.time()
    start_s = sent_s - now_s + time.monotonic()
    observation = complete(monitor.observe(now_s, now_s - begun_s), platform.configurations())
    nodes = [node for node in observation.nodes if node.kind == "expert"]
    cost = summed([function_cost([node], observation.window_s, prices) for node in nodes])
    amounts, hours = (cost.provisioned, cost.busy, cost.standbys), observation.window_s / 3600
    provisioned, busy, standbys = (None if amount is None else amount / hours for amount in amounts)
    standby_s = sum(node.configuration.standbys * observation.window_s for node in nodes if node.configuration)
    answered = [record for record in result.records if record.outcome == "ok" and record.latency_s is not None]
    arrival_s = np.array([record.scheduled_s for record in answered])
    latency_ms = 1000 * np.array([record.latency_s for record in answered])
    inside, near = load.within(arrival_s), load.within(arrival_s, SETTLED_S)
    burst_ms = float(np.quantile(latency_ms[inside], 0.95))
    p50_ms, between_ms = map(float, np.quantile(latency_ms[~near & (arrival_s > WARM_S)], (0.5, 0.95)))
    side = Side(
        burst_ms,
        between_ms,
        burst_ms / between_ms,
        p50_ms,
        provisioned,
        busy,
        standbys,
        sum(node.activated_s or 0.0 for node in nodes) / standby_s if standby_s else 0.0,
        len(answered),
        len(result.records) - len(answered),
    )
    return side, Work().after(observation).token_s, start_s


def activations(running: RunningPipeline) -> list[dict[str, Any]]:
    """Those that the ingress has kept, the latest last."""
    name = running.manifest.name
    address = running.client.replicas()[name][0]["address"]  # the front door serves no statistics
    shown = {CALLER_KEY: running.client.caller_key(name)}
    reply = requests.get(f"http://{address}/statistics", headers=shown, timeout=30)
    rows: list[dict[str, Any]] = reply.json()["activations"]
    return rows


def quantiles_ms(rows: list[dict[str, Any]], field: str) -> tuple[float | None, float | None]:
    """P50 and P99 in milliseconds of those that came so far; None without any."""
    seconds = [row[field] for row in rows if row[field] is not None]
    if not seconds:
        return None, None
    p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99))
    return float(p50), float(p99)


def waits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What activations kept calls waiting for: of each, seconds from the first call for one of its functions until one
    began at its standbys, none where that call itself did."""
    both = [(row["next_call_s"], row["first_call_s"]) for row in rows]
    return [{"waited_s": first_s - next_s} for next_s, first_s in both if next_s is not None and first_s is not None]


def times_ms(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many activations there were, their times, and the slowest."""
    times = {
        f"{name}_ms_{quantile}": value
        for name, field in TIMES_OF.items()
        for quantile, value in zip(("p50", "p99"), quantiles_ms(rows, field), strict=True)
    }
    served = sorted((row for row in rows if row["first_call_s"]), key=itemgetter("first_call_s"))
    return {
        "activations": len(rows),
        **times,
        "waited_ms_p99": quantiles_ms(waits(rows), "waited_s")[1],
        "slowest": served[-SLOWEST:],
    }


def show_sides(sides: dict[str, Side]) -> None:
    print_table(
        "Load steps",
        ("standbys", "P95 burst", "P95 between", "ratio", "provisioned", "of it standbys", "busy", "failed"),
        [
            (name, f"{side.p95_burst_ms:.0f} ms", f"{side.p95_between_ms:.0f} ms", f"{side.p95_ratio:.2f}",
             *(in_words(cost, 3) for cost in (side.provisioned, side.standby, side.busy)),
             side.failed)
            for name, side in sides.items()
        ],
    )  # fmt: skip


@benchmark
@click.option("--seconds", default=110.0, type=click.FloatRange(30), help="Length of each of the two runs.")
@click.option("--bursts", default=9, type=click.IntRange(1), help="Load steps in a run.")
@click.option("--base-rps", default=2.0, type=click.FloatRange(0.1), help="Requests a second between bursts.")
@click.option("--cpu-scale", default=0.012, type=click.FloatRange(0.001, 10), help="Real cores per configured core.")
@click.option("--standbys", default=3, type=click.IntRange(1, 16), help="Of each expert.")
@click.option("--hold-s", default=2.0, type=click.FloatRange(0.1), help="How long a standby stays activated.")
@click.option("--unstated", is_flag=True, help="The ingress measures by itself what a token costs.")
@data_option
@seed_option
def main(
    seconds: float, bursts: int, base_rps: float, cpu_scale: float, standbys: int, hold_s: float, unstated: bool,
    data: Path | None, seed: int,
) -> None:  # fmt: skip
    load = draw(seconds, base_rps, bursts, seed)
    texts = list(prompts.load_prompts(data, MAX_WORDS).texts)
    target = replace(STARTING, cpu_cores=1.0)
    deployment = DeploymentSettings(
        cpu_cores=STARTING.cpu_cores, segment_cpu_cores=1 / cpu_scale, ingress_cpu_cores=2 / cpu_scale
    )
    with tempfile.TemporaryDirectory() as folder, progress(2 * seconds) as show:
        gateway = local_gateway(Path(folder), cpu_scale=cpu_scale)
        show("deploying", 0)
        with running_pipeline(gateway, deployment) as running:
            topology = load_topology(running.directory)
            deploy(running, topology, target, texts[:WARM_REQUESTS], {})
            show("without standbys", 0)
            without, costs, _ = measured(running, topology, load, texts)
            bursting = replace(target, burst=Burst(standbys, hold_s=hold_s))
            deploy(running, topology, bursting, texts[:WARM_REQUESTS], {} if unstated else costs)
            show("with standbys", seconds)
            before = len(activations(running))
            bursting_side, _, start_s = measured(running, topology, load, texts)
            rows = activations(running)[before:]
    sides = {"with": bursting_side, "without": without}
    show_sides(sides)
    inside = load.within(np.array([row["begun_s"] for row in rows], dtype=np.float64) - start_s)
    print_result(
        {
            **times_ms([row for row, within in zip(rows, inside, strict=True) if within]),
            "between_bursts": times_ms([row for row, within in zip(rows, inside, strict=True) if not within]),
            **{name: asdict(side) for name, side in sides.items()},
            "failed": sum(side.failed for side in sides.values()),
            "bursts": bursts,
            "stated": not unstated,
        }
    )


if __name__ == "__main__":
    main()
