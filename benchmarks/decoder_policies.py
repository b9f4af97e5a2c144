"""Scaling policies next to constants on a decoder, simulated: ``python -m benchmarks.decoder_policies``.

Azure's code and conversation traces (2023) at half speed, lengths divided by 8 and 5, each request kept with a
probability: the first 1,300 s choose one setting of each policy, the rest (a warm-up of 240 s, then one
hour) judges it, with other draws of the requests. ``diurnal`` is the conversation trace kept by a probability that
rises and falls every 1,200 s (synthetic); ``slow`` loads have replicas that take a minute to start, not 10 s.

Times of an instance come from the medians in docs/results/generation (1, 4 and 16 streams of 64 tokens, functions on
two vCPUs), linear in between; attention over longer contexts costs nothing, and iterations vary by a tenth. Of ten
layers of experts one is simulated and the other nine are part of the segments' time.

Chosen is the least money with at least 95 % of the requests within both targets, else the most requests within them.
Last line: ``rows`` (policy, chosen settings, ``train`` and by test seed the summary), ``against`` (by policy and seed:
cost over what constants cost at as many requests within the targets, linear between constants; null above the best).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import ArrayLike

from autoscaler.contract import Configuration, ConfigurationSpace, NodeInfo, Policy, Topology
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.instances import InstancesPolicy
from autoscaler.policy.scaled_together import ScaledTogetherPolicy
from autoscaler.state.targets import Targets
from benchmarks.harness.options import PRESENT, benchmark, data_option, listed
from benchmarks.harness.report import picture, print_result, print_table, progress
from evaluation.generation import ENOUGH, Setting, policy_of, run_policy, simulate_made
from rl.features import calls_of
from rl.staffing.features import StaffingEncoder
from rl.staffing.policy import RuleSettings, StaffingRule
from simulation.arrays import Bools, Floats
from simulation.generation.engine import Request
from simulation.generation.measured import Measured
from simulation.latency.contract import NodeCost, Noise
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Lifecycle, TokenLengths, Workload
from traces import catalog, loading
from traces.completions import lengths_of
from traces.model import Trace
from traces.scale import compress, thin

SPEED, CONTEXT = 0.5, 8192
TRAIN_S, TRAIN_WARM_UP_S, TEST_S, WARM_UP_S = 1300.0, 200.0, 3840.0, 240.0
PERIOD_S = 1200.0
"""The length of a synthetic day."""
MOST = 8
TIMES = Measured(
    knots=(1, 4, 16, 64, 256),
    base_s=(0.0825, 0.126, 0.135, 0.206, 0.748),
    text_s=0.006,
    context_s=0.0,
    attention_s=0.0,
    front_s=0.006,
    jitter=(0.9, 1.0, 1.1),
    chunk_tokens=256,
    kv_tokens=16000,
)
"""TPOT of 88.5, 150 and 231 ms with 1, 4 and 16 texts, TTFT of 218 ms for 64 tokens and of 760 ms for four times 64."""
LAYERS_TOGETHER = 10
"""Layers of experts, of which one is simulated."""
EXPERTS = 7
"""To two segments, all of one core, the least: an instance costs in proportion to experts as 11 segments do to 40."""
EXPERT_SHARE = 0.2
"""The share of an iteration, all layers."""


@dataclass(frozen=True)
class ExpertTimes:
    """Seconds of a call by its tokens, those of each token over cores (:class:`simulation.latency.LatencyModel`)."""

    base_s: float = EXPERT_SHARE * 0.0825 / LAYERS_TOGETHER
    token_s: float = EXPERT_SHARE * 0.748 / LAYERS_TOGETHER / 128
    name: str = "a fifth of an iteration"

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return np.asarray(self.base_s + np.asarray(tokens) * self.token_s / np.asarray(cpu_cores))

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        return np.ones(np.broadcast_shapes(np.shape(calls), np.shape(tokens), np.shape(cpu_cores)))

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return np.asarray(1.0)

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        return Noise.none()

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        return np.zeros(np.shape(tokens), dtype=np.bool_)


@dataclass(frozen=True)
class Load:
    """One row group of the table. Seconds; ``keep``: the probability with which a request is kept."""

    trace: str
    keep: float
    length_divisor: float
    cold_start_s: float = 10.0
    diurnal: bool = False


LOADS: Mapping[str, Load] = {
    "code": Load("llm-code", 0.35, 8.0),
    "conversation": Load("llm-conv", 0.9, 5.0),
    "diurnal": Load("llm-conv", 1.0, 5.0, diurnal=True),
    "code, slow": Load("llm-code", 0.35, 8.0, 60.0),
    "diurnal, slow": Load("llm-conv", 1.0, 5.0, 60.0, diurnal=True),
}


@dataclass(frozen=True)
class Candidate:
    """A policy with settings to choose from; the first are its defaults."""

    name: str
    tables: Sequence[Mapping[str, Any]]


SHARES = "0.7,0.15,0.4"
THRESHOLDS = ((0.55, 0.4), (0.3, 0.2), (0.8, 0.5), (0.2, 0.1), (0.1, 0.05))
UTILISATIONS = (0.7, 0.3, 0.5, 0.9, 0.1)
NAMES = ("hpa", "kpa", "keda", "apa", "slo-aware", "staffing", "elasticmoe")


def candidates(shares: Sequence[float]) -> list[Candidate]:
    """As many settings of each policy as there are ``shares`` of call slots, at most five."""
    tables: dict[str, list[dict[str, Any]]] = {
        "hpa": [{"concurrency_target": share} for share in shares],
        "kpa": [{"target_utilisation": share} for share in shares],
        "keda": [{"triggers": [{"threshold": 10 * share}]} for share in shares],
        "apa": [{"target": share} for share in shares],
        "slo-aware": [{"up_threshold": up, "down_threshold": down} for up, down in THRESHOLDS[: len(shares)]],
        "staffing": [{"concurrency_target": share} for share in shares],
        "elasticmoe": [{"utilisation": share} for share in UTILISATIONS[: len(shares)]],
    }
    return [Candidate(name, tables[name]) for name in NAMES]


def decoder(cold_start_s: float) -> Workload:
    """Two segments and a layer of experts, top-2; replicas take ``cold_start_s`` to start."""
    sizes = {"segment": 16 * 2**20, "expert": 4 * 2**20}
    names: list[tuple[str, str, int, int | None]] = [
        ("segment-0", "segment", 0, None),
        ("segment-1", "segment", 1, None),
    ]
    names += [(f"expert-0-{j}", "expert", 0, j) for j in range(EXPERTS)]
    nodes = [NodeInfo("ingress", "decoder", "ingress", None, None, 0, 0, 0)]
    nodes += [
        NodeInfo(node, f"decoder-{node}", kind, layer, expert, 10**6, sizes[kind], 4096)  # type: ignore[arg-type]
        for node, kind, layer, expert in names
    ]
    costs = {
        node.id: NodeCost(node.kind, 1e6, 0.0, 0.0, sizes[node.kind], sizes[node.kind], 2304.0, 2304.0)
        for node in nodes[1:]
    }
    return Workload(
        name="decoder",
        topology=Topology("decoder", "0" * 64, 1, tuple(nodes), (), generates=True),
        slo_s=0.6,
        costs=costs,
        latency=ExpertTimes(),
        lifecycle=Lifecycle(cold_start_s, cold_start_s, math.inf, resize_s=0.1, drain_s=0.0),
        routing=zipf_routing([EXPERTS]),
        top_k=2,
        tokens=TokenLengths.fixed(1),
        space=ConfigurationSpace(cpu_cores=(1, 2, 3, 4), gpu_shares=()),
    )


def requests_of(trace: Trace, load: Load, seed: int, start_s: float, duration_s: float) -> list[Request]:
    """Requests in a part of the stretched trace, from 0 on, in order of arrival."""
    stretched = compress(trace, SPEED)
    if load.diurnal:
        day = 0.55 - 0.45 * np.cos(2 * np.pi * stretched.arrival_s / PERIOD_S)
        chosen = np.random.default_rng(seed).random(stretched.requests) < load.keep * day
        kept = stretched.select(chosen, "kept by the time of a synthetic day")
    else:
        kept = thin(stretched, load.keep, seed)
    lengths = lengths_of(kept, load.length_divisor, CONTEXT)
    rows = zip((kept.arrival_s - start_s).tolist(), lengths.prompt.tolist(), lengths.answer.tolist(), strict=True)
    return [Request(at, int(prompt), int(answer)) for at, prompt, answer in rows if 0 <= at < duration_s]


def setting_of(load: Load, requests: list[Request], targets: Targets, warm_up_s: float, seed: int) -> Setting:
    workload = decoder(load.cold_start_s)
    segment = Configuration(memory_mb=256, cpu_cores=1.0, gpu_share=0.0, replicas=1, concurrency=10)
    expert = replace(segment, memory_mb=128, concurrency=4)
    start = {
        node.function: segment if node.kind == "segment" else expert for node in (*workload.segments, *workload.experts)
    }
    nowhere = Path()
    return Setting(nowhere, nowhere, workload, TIMES, requests, targets, start, 5.0, warm_up_s, MOST, seed=seed)


def staffing(setting: Setting, table: Mapping[str, Any]) -> Policy:
    """The rule for experts, planned with the simulation's own times, without standbys; HPA for instances."""
    workload = replace(setting.workload, slo_s=setting.targets.tpot_s or setting.workload.slo_s)
    encoder = StaffingEncoder(workload.topology, setting.limits, workload.prices, workload.slo_s, calls_of(workload))
    rule = StaffingRule(workload, encoder, RuleSettings(standbys=0.0).values())
    hpa = HpaSettings(kinds=frozenset({"segment"}), max_replicas=MOST, **table)
    return InstancesPolicy(ScaledTogetherPolicy(rule, HpaPolicy(hpa)))


def judged(setting: Setting, candidate: Candidate, table: Mapping[str, Any], instances: int) -> dict[str, Any]:
    """A policy's row; instances begin with those of the constant, for every policy."""
    begun = setting.with_instances(instances)
    if candidate.name == "staffing":
        return simulate_made(begun, candidate.name, staffing(begun, table))
    return simulate_made(begun, candidate.name, policy_of(begun, candidate.name, table))


def choice(rows: Sequence[Mapping[str, Any]]) -> int:
    """Place of the least money with enough requests within the targets, else of the most requests within them."""
    enough = [place for place, row in enumerate(rows) if row["goodput"] >= ENOUGH]
    if enough:
        return min(enough, key=lambda place: float(rows[place]["cost"]))
    return max(range(len(rows)), key=lambda place: float(rows[place]["goodput"]))


def constant_cost(constants: Sequence[tuple[float, float]], goodput: float) -> float | None:
    """What constants, (goodput, cost) each, cost at ``goodput``: the least of any mixture of two in time; None above
    the best."""
    if goodput > max(kept for kept, _ in constants):
        return None
    costs = [cost for kept, cost in constants if kept >= goodput]
    costs += [
        low[1] + (high[1] - low[1]) * (goodput - low[0]) / (high[0] - low[0])
        for low in constants
        for high in constants
        if low[0] < goodput < high[0]
    ]
    return min(costs)


def evaluate(
    load: Load,
    trace: Trace,
    targets: Targets,
    seeds: Sequence[int],
    rows_of: tuple[Sequence[int], Sequence[Candidate]],
    show: Callable[[str, float], None],
) -> list[dict[str, Any]]:
    """Constants and chosen policies of one load, JSON-ready; ``show`` hears the name and number of each."""
    train = setting_of(load, requests_of(trace, load, 0, 0.0, TRAIN_S), targets, TRAIN_WARM_UP_S, 0)
    tests = {
        seed: setting_of(load, requests_of(trace, load, seed, TRAIN_S, TEST_S), targets, WARM_UP_S, seed)
        for seed in seeds
    }
    counts, policies = rows_of
    rows: list[dict[str, Any]] = []
    for count in counts:
        constant = f"constant-{count}"
        show(constant, len(rows))
        judgements = {seed: run_policy(test, constant) for seed, test in tests.items()}
        rows.append({"policy": constant, "settings": {}, "train": run_policy(train, constant), "tests": judgements})
    best = counts[choice([row["train"] for row in rows])]
    for candidate in policies:
        show(candidate.name, len(rows))
        tried = [judged(train, candidate, table, best) for table in candidate.tables]
        chosen = candidate.tables[choice(tried)]
        judgements = {seed: judged(test, candidate, chosen, best) for seed, test in tests.items()}
        row = {"policy": candidate.name, "settings": dict(chosen), "tests": judgements, "begun_with": best}
        rows.append(row | {"train": tried})
    return rows


def against(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Policy → by seed its cost over the constants' at the same goodput."""
    ratios: dict[str, Any] = {}
    constants = [row for row in rows if row["policy"].startswith("constant-")]
    for row in rows:
        if row in constants:
            continue
        ratios[row["policy"]] = {}
        for seed in seeds:
            front = [(one["tests"][seed]["goodput"], one["tests"][seed]["cost"]) for one in constants]
            cost = constant_cost(front, row["tests"][seed]["goodput"])
            ratios[row["policy"]][seed] = None if cost is None else row["tests"][seed]["cost"] / cost
    return ratios


@benchmark
@data_option
@click.option("--load", "name", type=click.Choice(tuple(LOADS)), default="code", help="Which requests.")
@click.option("--policies", callback=listed(str, NAMES), default=",".join(NAMES), help="Comma list.")
@click.option("--constants", callback=listed(int), default="1,2,3,4,5,6,7,8", help="Numbers of instances.")
@click.option("--shares", callback=listed(float), default=SHARES, help="Of call slots: targets to choose from.")
@click.option("--ttft-ms", type=click.FloatRange(1), default=4000.0, help="Target of the time to the first token.")
@click.option("--tpot-ms", type=click.FloatRange(1), default=600.0, help="Target of the time per output token.")
@click.option("--seeds", callback=listed(int), default="1,2", help="Of the hours that judge.")
@click.option("--stored", type=PRESENT, multiple=True, help="Last lines of runs: only draw them.")
@click.option("--picture", "to", type=click.Path(path_type=Path), help="Where to draw cost and goodput.")
def main(
    data: Path | None,
    name: str,
    policies: Any,
    constants: Any,
    shares: Any,
    ttft_ms: float,
    tpot_ms: float,
    seeds: Any,
    stored: tuple[Path, ...],
    to: Path | None,
) -> None:
    if stored:
        if to is None:
            raise click.UsageError("--stored draws what was run: --picture is missing")
        draw([json.loads(path.read_text()) for path in stored], to)
        return
    load = LOADS[name]
    trace = loading.load(catalog.resolve(load.trace, catalog.data_folder(data)))
    targets = Targets(None, ttft_ms / 1000, tpot_ms / 1000)
    chosen = [one for one in candidates(shares) if one.name in policies]
    with progress(len(constants) + len(chosen), name) as show:
        rows = evaluate(load, trace, targets, seeds, (constants, chosen), show)
    ratios = against(rows, seeds)
    print_table(f"{name}, simulated", HEADS, [_cells(row, ratios.get(row["policy"])) for row in rows])
    result = {"load": name, "simulated": True, "rows": rows, "against": ratios}
    if to is not None:
        draw([result], to)
    print_result(result)


DOLLARS = (0.75, 1, 1.5, 2, 3, 5)
"""Ticks of the picture."""


def draw(results: Sequence[Mapping[str, Any]], to: Path) -> None:
    """Goodput over dollars of the first test seed, a panel a load: constants as a line, a policy as a point."""
    with picture(to, 1, len(results), figsize=(4.6 * len(results), 4.2), squeeze=False) as (_, panels):
        for panel, result in zip(panels[0], results, strict=True):
            firsts = [(row["policy"], next(iter(row["tests"].values()))) for row in result["rows"]]
            held = [(name, one["cost"], 100 * one["goodput"]) for name, one in firsts if name.startswith("constant-")]
            panel.plot(
                [cost for _, cost, _ in held], [kept for *_, kept in held], "o-", color="grey", label="constants"
            )
            for name, cost, kept in held:
                count = name.removeprefix("constant-")
                panel.annotate(count, (cost, kept), (-3, 6), textcoords="offset points", ha="right", color="dimgrey")
            for name, one in firsts[len(held) :]:
                place = NAMES.index(name)
                look = {"marker": "s^vDPX*"[place], "color": f"C{place}", "fillstyle": "none", "linestyle": ""}
                panel.plot(one["cost"], 100 * one["goodput"], markersize=8, label=name, **look)
            panel.set(xscale="log", xlabel="USD in the hour (log)", title=f"{result['load']}, simulated")
            panel.minorticks_off()
            panel.set_xticks(DOLLARS, [f"{dollars:g}" for dollars in DOLLARS])
            panel.set_ylim(top=108)
            panel.legend(loc="lower right")
        panels[0][0].set_ylabel("requests within both targets, %")


HEADS = ("policy", "settings", "goodput", "TTFT P95, s", "TPOT P95, s", "instance-hours", "USD", "over constants")


def _cells(row: Mapping[str, Any], ratios: Mapping[int, float | None] | None) -> tuple[str, ...]:
    """A row of the table: the tests by seed."""
    tests = list(row["tests"].values())
    settings = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    over = "" if ratios is None else ", ".join("-" if one is None else f"{one:.2f}" for one in ratios.values())
    return (
        row["policy"],
        settings,
        ", ".join(f"{one['goodput']:.1%}" for one in tests),
        ", ".join(f"{one['ttft_s']['p95']:.1f}" for one in tests),
        ", ".join(f"{one['tpot_s']['p95']:.2f}" for one in tests),
        ", ".join(f"{one['instance_s'] / 3600:.2f}" for one in tests),
        ", ".join(f"{one['cost']:.3f}" for one in tests),
        over,
    )


if __name__ == "__main__":
    main()
