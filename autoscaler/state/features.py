"""The features of section 4.2 of the sMoE paper, computed from one window's readings.

Thousands of nodes are computed column by column: a list holds one number of every node, in the topology's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from autoscaler.contract import (
    MIB,
    NAMESPACE,
    Arrivals,
    Configuration,
    GenerationObservation,
    LayerObservation,
    NodeInfo,
    NodeObservation,
    Observation,
    Topology,
)
from autoscaler.state.quantiles import histogram_quantile
from autoscaler.state.readings import Buckets, Key, Readings, Series
from autoscaler.state.shares import layer_shares, ratio, routing_entropy, tails, total, variance
from functions.serving.metric_names import LOOK_BACKS_S

Column = list[float | None]
_V = TypeVar("_V")


def observe(topology: Topology, readings: Readings, namespace: str = NAMESPACE) -> Observation:
    """All features of one window. Numbers that could not be read are None; ``problems`` names the reason.

    ``namespace``: what the gateway's metrics call the one that the functions are in.
    """
    pipeline = topology.pipeline
    window_s = readings.window_s
    nodes = _nodes(topology, readings, namespace)
    latency = readings.histogram(Series.REQUEST_SECONDS, pipeline)
    requests = readings.total(Series.REQUESTS, pipeline)
    tokens = readings.value(Series.REQUEST_TOKENS, pipeline)
    experts: dict[int, list[NodeObservation]] = {layer: [] for layer in range(topology.layers)}
    for node in nodes:
        if node.kind == "expert" and node.layer in experts:
            experts[node.layer].append(node)
    return Observation(
        start_s=readings.start_s,
        end_s=readings.end_s,
        pipeline=pipeline,
        requests=requests,
        failed=None if requests is None else _failed(pipeline, readings),
        requests_per_s=ratio(requests, window_s),
        tokens_per_s=ratio(tokens, window_s),
        in_flight=readings.value(Series.REQUESTS_IN_FLIGHT, pipeline),
        latency_p50_s=histogram_quantile(0.50, latency),
        latency_p95_s=histogram_quantile(0.95, latency),
        latency_p99_s=histogram_quantile(0.99, latency),
        nodes=tuple(nodes),
        layers=tuple(_layer(topology, layer, row, readings) for layer, row in experts.items()),
        problems=readings.problems,
        stale=readings.stale or requests is None,
        generation=_generation(pipeline, readings),
        arrivals=_arrivals(pipeline, readings, _ingresses(nodes)),
    )


def _ingresses(nodes: Iterable[NodeObservation]) -> int:
    """Ready replicas of the ingress; one where that is not known."""
    return max([1, *(node.ready_replicas or 1 for node in nodes if node.kind == "ingress")])


def _arrivals(pipeline: str, readings: Readings, ingresses: int) -> tuple[Arrivals, ...]:
    """The pipeline's: each of so many ingresses counts the requests that it gets, about an equal part."""
    measured = []
    for look_back_s in LOOK_BACKS_S:
        buckets = readings.histogram(Series.ARRIVAL_RATES, pipeline, f"{look_back_s:g}")
        p50, p95, p99 = (histogram_quantile(q, buckets) for q in (0.5, 0.95, 0.99))
        if p50 is not None and p95 is not None and p99 is not None:
            measured.append(Arrivals(look_back_s, *(ingresses * rate for rate in (p50, p95, p99))))
    return tuple(measured)


def _generation(pipeline: str, readings: Readings) -> GenerationObservation | None:
    running = readings.value(Series.TEXTS_RUNNING, pipeline)
    if running is None:  # every decoder's ingress serves it, from its start
        return None
    first = readings.histogram(Series.TTFT_SECONDS, pipeline)
    following = readings.histogram(Series.TPOT_SECONDS, pipeline)
    return GenerationObservation(
        ttft_p50_s=histogram_quantile(0.50, first),
        ttft_p95_s=histogram_quantile(0.95, first),
        tpot_p50_s=histogram_quantile(0.50, following),
        tpot_p95_s=histogram_quantile(0.95, following),
        running=running,
        waiting=readings.value(Series.TEXTS_WAITING, pipeline),
        kv_usage=readings.value(Series.KV_USAGE, pipeline),
        prompt_tokens_per_s=ratio(readings.value(Series.PROMPT_TOKENS, pipeline), readings.window_s),
        written_tokens_per_s=ratio(readings.value(Series.WRITTEN_TOKENS, pipeline), readings.window_s),
        preemptions=readings.value(Series.PREEMPTIONS, pipeline),
    )


def _failed(pipeline: str, readings: Readings) -> float:
    """Requests answered with a 5xx or turned away with 429."""
    codes = {key[1]: value for key, value in readings.values[Series.REQUESTS].items() if key[0] == pipeline}
    return sum(value for code, value in codes.items() if code.startswith("5") or code == "429")


def _layer(topology: Topology, layer: int, experts: Sequence[NodeObservation], readings: Readings) -> LayerObservation:
    shares = [node.token_share for node in experts if node.token_share is not None]
    work = [
        None if observed.tokens_per_s is None else observed.tokens_per_s * info.flops_per_token
        for observed, info in zip(experts, topology.experts(layer), strict=True)
    ]
    barrier = readings.histogram(Series.LAYER_BARRIER_SECONDS, topology.pipeline, str(layer))
    return LayerObservation(
        layer=layer,
        tokens_per_s=total([node.tokens_per_s for node in experts]),
        token_routing_entropy=routing_entropy(shares) if shares else None,
        latency_variance_s2=variance(tails(experts)),
        flops_per_s=total(work),
        barrier_p95_s=histogram_quantile(0.95, barrier),
    )


def _nodes(topology: Topology, readings: Readings, namespace: str) -> list[NodeObservation]:
    infos, window_s = topology.nodes, readings.window_s
    names: list[Key] = [(f"{node.function}.{namespace}",) for node in infos]
    configurations = _configurations(names, readings)
    ready = _column(readings.values.get(Series.REPLICAS_BY_STATE, {}), [(name, "ready") for (name,) in names])
    measured = _measured(readings, names)
    work = _work(topology, readings)
    calls, busy, waited = work["calls"], work["busy_s"], work["wait_s"]
    in_flight = _rates(busy, window_s)
    calls_per_s, tokens_per_s = _rates(calls, window_s), _rates(work["tokens"], window_s)
    p95 = _p95(topology, readings)
    token_shares, call_shares, stragglers = _shares(infos, tokens_per_s, calls_per_s, p95)
    nothing: list[None] = [None] * len(infos)
    columns: dict[str, Iterable[object]] = {
        "node": [node.id for node in infos],
        "function": [node.function for node in infos],
        "kind": [node.kind for node in infos],
        "layer": [node.layer for node in infos],
        "expert": [node.expert for node in infos],
        "configuration": configurations,
        "ready_replicas": _whole(ready),
        "cpu_utilisation": _cpu_utilisation(configurations, names, measured, readings),
        "memory_utilisation": _memory_utilisation(names, readings),
        "gpu_utilisation": nothing,
        "concurrency_utilisation": map(_concurrency_utilisation, configurations, ready, in_flight),
        "latency_p95_s": p95,
        "latency_mean_s": map(_mean_latency_s, busy, waited, calls),
        "tokens_per_s": tokens_per_s,
        "requests_per_s": calls_per_s,
        "in_flight": in_flight,
        "waiting": _rates(waited, window_s),
        "busy_s": busy,
        "cpu_s": _column(readings.values.get(Series.REPLICA_CPU_SECONDS, {}), names),
        "peak_tokens": _column(readings.values.get(Series.NODE_TOKENS_PEAK, {}), _keys(topology)),
        "token_share": token_shares,
        "request_share": call_shares,
        "straggler_ratio": stragglers,
        "measured_replicas": _whole(measured),
        "busy_replica_s": nothing,
        "age_s": [_age_s(readings)] * len(infos),
        "activated_s": _column(readings.values.get(Series.STANDBY_ACTIVATED_SECONDS, {}), names),
    }
    rows = zip(*(columns[name] for name in NodeObservation._fields), strict=True)
    return list(map(NodeObservation._make, rows))


def _mean_latency_s(busy_s: float | None, waited_s: float | None, calls: float | None) -> float | None:
    return None if busy_s is None or waited_s is None else ratio(busy_s + waited_s, calls)


def _age_s(readings: Readings) -> float | None:
    """The older of the gateway's and the ingresses' samples; None without both: one is not the other's age."""
    return max(readings.ages_s.values()) if len(readings.ages_s) == 2 else None


def _measured(readings: Readings, names: Sequence[Key]) -> Column:
    """Replicas with their CPU time over the window, without standbys that wait: those have next to no CPU to use."""
    counts = _column(readings.counts.get(Series.REPLICA_CPU_SECONDS, {}), names)
    states = readings.values.get(Series.REPLICAS_BY_STATE, {})
    return [
        None if count is None else max(0.0, count - states.get((name, "standby"), 0.0))
        for count, (name,) in zip(counts, names, strict=True)
    ]


def _keys(topology: Topology) -> list[Key]:
    return [(topology.pipeline, node.id) for node in topology.nodes]


def _column(values: Mapping[Key, _V], keys: Iterable[Key]) -> list[_V | None]:
    return list(map(values.get, keys))


def _rates(amounts: Sequence[float | None], window_s: float) -> Column:
    if not window_s:
        return [None] * len(amounts)
    return [None if amount is None else amount / window_s for amount in amounts]


def _whole(numbers: Sequence[float | None]) -> list[int | None]:
    return [None if number is None else round(number) for number in numbers]


def _p95(topology: Topology, readings: Readings) -> Column:
    """EL(t), as the source gives it or from its buckets. The ingress' is that of whole requests."""
    given, keys = readings.tails.get(Series.NODE_CALL_SECONDS), _keys(topology)
    if given is None:
        histograms: Mapping[Key, Buckets] = readings.histograms.get(Series.NODE_CALL_SECONDS, {})
        p95 = [histogram_quantile(0.95, buckets) for buckets in _column(histograms, keys)]
    else:
        p95 = _column(given, keys)
    for place, node in enumerate(topology.nodes):
        if node.kind == "ingress":
            p95[place] = histogram_quantile(0.95, readings.histogram(Series.REQUEST_SECONDS, topology.pipeline))
    return p95


def _work(topology: Topology, readings: Readings) -> dict[str, Column]:
    """Calls, tokens, seconds at replicas and seconds waited of every node, in this window.

    A node that was never called may have no series yet; where the ingress that would count its calls was read, that is
    a zero and not a gap. Nothing waits in front of the ingress.
    """
    pipeline, keys = topology.pipeline, _keys(topology)
    requests = readings.total(Series.REQUESTS, pipeline)
    absent = None if requests is None else 0.0
    columns: dict[str, Column] = {}
    for name, series in _WORK.items():
        sums = readings.totals(series, 2)
        columns[name] = [sums.get(key, absent) for key in keys]
    exact = {
        "calls": requests,
        "tokens": readings.value(Series.REQUEST_TOKENS, pipeline),
        "busy_s": readings.value(Series.REQUEST_SECONDS_SUM, pipeline),
        "wait_s": absent,
    }
    for place, node in enumerate(topology.nodes):
        if node.kind == "ingress":
            for name, value in exact.items():
                columns[name][place] = value
    return columns


_WORK = {
    "calls": Series.NODE_CALLS,
    "tokens": Series.NODE_TOKENS,
    "busy_s": Series.NODE_BUSY_SECONDS,
    "wait_s": Series.NODE_WAIT_SECONDS,
}


def _shares(infos: Sequence[NodeInfo], tokens: Column, calls: Column, p95: Column) -> tuple[Column, Column, Column]:
    """TS, RS and SR of every expert within its layer; None for all other nodes."""
    layers: dict[int, list[int]] = {}
    for place, node in enumerate(infos):
        if node.kind == "expert" and node.layer is not None:
            layers.setdefault(node.layer, []).append(place)
    columns: tuple[Column, Column, Column] = ([None] * len(infos), [None] * len(infos), [None] * len(infos))
    for places in layers.values():
        shared = layer_shares([tokens[i] for i in places], [calls[i] for i in places], [p95[i] for i in places])
        for column, numbers in zip(columns, shared, strict=True):
            for place, number in zip(places, numbers, strict=True):
                column[place] = number
    return columns


def _configurations(names: Sequence[Key], readings: Readings) -> list[Configuration | None]:
    """CC(t) from the gateway's gauges; None when one of them is missing."""
    memory_bytes, cores, replicas, concurrency = (
        _column(readings.values.get(series, {}), names)
        for series in (
            Series.MEMORY_LIMIT_BYTES,
            Series.CPU_LIMIT_CORES,
            Series.REPLICAS_WANTED,
            Series.MAX_INFLIGHT,
        )
    )
    return [
        None if not memory or not cpu or count is None or slots is None else _configuration(memory, cpu, count, slots)
        for memory, cpu, count, slots in zip(memory_bytes, cores, replicas, concurrency, strict=True)
    ]


@lru_cache(maxsize=4096)
def _configuration(memory_bytes: float, cores: float, replicas: float, concurrency: float) -> Configuration:
    """Most functions have one of a few configurations."""
    return Configuration(max(1, round(memory_bytes / MIB)), cores, 0.0, round(replicas), round(concurrency))


def _cpu_utilisation(
    configurations: Sequence[Configuration | None],
    names: Sequence[Key],
    replicas: Sequence[float | None],
    readings: Readings,
) -> Column:
    """CPU time used over CPU time configured, of the ``replicas`` that were there during the whole window."""
    used = _column(readings.measured.get(Series.REPLICA_CPU_SECONDS, {}), names)
    window_s, real_per_configured = readings.window_s, readings.value(Series.CPU_SCALE) or 1.0
    return [
        None
        if configuration is None or not configuration.cpu_cores or cpu_s is None or not count
        else ratio(cpu_s, window_s * count * configuration.cpu_cores * real_per_configured)
        for configuration, cpu_s, count in zip(configurations, used, _whole(replicas), strict=True)
    ]


def _memory_utilisation(names: Sequence[Key], readings: Readings) -> Column:
    """By the limit alone, so that a function with a GPU share has it too, which has no CPU limit."""
    limits = _column(readings.values.get(Series.MEMORY_LIMIT_BYTES, {}), names)
    used = _column(readings.values.get(Series.REPLICA_MEMORY_BYTES, {}), names)
    replicas = _whole(_column(readings.counts.get(Series.REPLICA_MEMORY_BYTES, {}), names))
    return [
        None if not limit_bytes or used_bytes is None or not count else used_bytes / (count * limit_bytes)
        for limit_bytes, used_bytes, count in zip(limits, used, replicas, strict=True)
    ]


def _concurrency_utilisation(
    configuration: Configuration | None, ready: float | None, in_flight: float | None
) -> float | None:
    if configuration is None or not ready or in_flight is None or not configuration.concurrency:
        return None
    return in_flight / (ready * configuration.concurrency)


def complete(observation: Observation, present: Mapping[str, Configuration]) -> Observation:
    """CC(t) from the platform's own list, which is younger than any metric, and sentences for what is still missing.

    ``present``: function → configuration as the platform has it now. A policy that judged by an older number of
    replicas would undo what the last tick did.
    """
    nodes = []
    for node in observation.nodes:
        configuration = present.get(node.function, node.configuration)
        slots = node.concurrency_utilisation
        if node.configuration is None:
            slots = _concurrency_utilisation(configuration, node.ready_replicas, node.in_flight)
        if configuration != node.configuration or slots != node.concurrency_utilisation:
            node = node._replace(configuration=configuration, concurrency_utilisation=slots)
        nodes.append(node)
    return replace(observation, nodes=tuple(nodes), problems=observation.problems + _missing(nodes))


def _missing(nodes: Sequence[NodeObservation]) -> tuple[str, ...]:
    sentences = []
    for what, without in (
        ("configuration", [node.node for node in nodes if node.configuration is None]),
        ("number of ready replicas", [node.node for node in nodes if node.ready_replicas is None]),
    ):
        if without:
            shown = ", ".join(without[:4]) + (" …" if len(without) > 4 else "")
            sentences.append(f"no {what} is known of {len(without)} of {len(nodes)} nodes: {shown}")
    return tuple(sentences)
