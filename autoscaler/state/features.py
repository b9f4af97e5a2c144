"""The features of section 4.2 of the sMoE paper, computed from one window's readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autoscaler.contract import (
    MIB,
    Configuration,
    LayerObservation,
    NodeInfo,
    NodeObservation,
    Observation,
    Topology,
)
from autoscaler.state.quantiles import histogram_quantile
from autoscaler.state.readings import Readings
from functions.shared import metric_names as ingress
from gateway import metric_names as gateway

NAMESPACE = "openfaas-fn"


def observe(topology: Topology, readings: Readings) -> Observation:
    """All features of one window. Numbers that could not be read are None; ``problems`` says which are missing."""
    pipeline = topology.pipeline
    window_s = readings.end_s - readings.start_s
    nodes = [_node(topology, node, readings, window_s) for node in topology.nodes]
    layers = []
    for layer in range(topology.layers):
        members = [i for i, node in enumerate(topology.nodes) if node.kind == "expert" and node.layer == layer]
        shared = with_shares([nodes[i] for i in members])
        for i, node in zip(members, shared, strict=True):
            nodes[i] = node
        layers.append(_layer(topology, layer, shared, readings))
    latency = readings.histogram(ingress.REQUEST_SECONDS, pipeline)
    codes = readings.counters.get(ingress.REQUESTS, {})
    own = {key[1]: value for key, value in codes.items() if key[0] == pipeline}
    requests = sum(own.values()) if own else None
    tokens = readings.counter(ingress.REQUEST_TOKENS, pipeline)
    return Observation(
        start_s=readings.start_s,
        end_s=readings.end_s,
        pipeline=pipeline,
        requests=requests,
        failed=sum(v for code, v in own.items() if code.startswith("5") or code == "429") if own else None,
        requests_per_s=None if requests is None else requests / window_s,
        tokens_per_s=None if tokens is None else tokens / window_s,
        in_flight=readings.gauge(ingress.REQUESTS_IN_FLIGHT, pipeline),
        latency_p50_s=histogram_quantile(0.50, latency),
        latency_p95_s=histogram_quantile(0.95, latency),
        latency_p99_s=histogram_quantile(0.99, latency),
        nodes=tuple(nodes),
        layers=tuple(layers),
        problems=readings.problems + _missing(nodes),
        stale=readings.stale or requests is None,
    )


def routing_entropy(shares: Sequence[float]) -> float:
    """TRE = -Σ TS log TS (natural logarithm); shares of 0 add nothing. Even over K experts: ln K."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def variance(values: Sequence[float]) -> float | None:
    """Population variance, None for no values."""
    if not values:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def with_shares(experts: Sequence[NodeObservation]) -> list[NodeObservation]:
    """TS, RS and SR of one layer's experts. Shares are None when the layer's sum is unknown or zero."""
    tokens = _total([node.tokens_per_s for node in experts])
    calls = _total([node.requests_per_s for node in experts])
    tails = [node.latency_p95_s for node in experts if node.latency_p95_s is not None]
    slowest = max(tails, default=None)
    return [
        replace(
            node,
            token_share=_ratio(node.tokens_per_s, tokens),
            request_share=_ratio(node.requests_per_s, calls),
            straggler_ratio=_ratio(node.latency_p95_s, slowest),
        )
        for node in experts
    ]


def _layer(topology: Topology, layer: int, experts: Sequence[NodeObservation], readings: Readings) -> LayerObservation:
    tokens = _total([node.tokens_per_s for node in experts])
    shares = [node.token_share for node in experts if node.token_share is not None]
    tails = [node.latency_p95_s for node in experts if node.latency_p95_s is not None]
    work = [
        observed.tokens_per_s * info.flops_per_token
        for observed, info in zip(experts, topology.experts(layer), strict=True)
        if observed.tokens_per_s is not None
    ]
    barrier = readings.histogram(ingress.LAYER_BARRIER_SECONDS, topology.pipeline, str(layer))
    return LayerObservation(
        layer=layer,
        tokens_per_s=tokens,
        token_routing_entropy=routing_entropy(shares) if shares else None,
        latency_variance_s2=variance(tails),
        flops_per_s=sum(work) if work else None,
        barrier_p95_s=histogram_quantile(0.95, barrier),
    )


def _node(topology: Topology, node: NodeInfo, readings: Readings, window_s: float) -> NodeObservation:
    function_name = f"{node.function}.{NAMESPACE}"
    configuration = present_configuration(readings, function_name)
    ready = readings.gauge(gateway.FUNCTION_REPLICAS, function_name, "ready")
    cpu_s = readings.counter(gateway.REPLICA_CPU_SECONDS, function_name)
    memory = readings.gauge(gateway.REPLICA_MEMORY_BYTES, function_name)
    cpu_scale = readings.gauge(gateway.CPU_SCALE)
    own = (topology.pipeline, node.id)
    calls = _node_calls(topology, node, readings)
    if node.kind == "ingress":
        latency = readings.histogram(ingress.REQUEST_SECONDS, topology.pipeline)
        seconds = None
        tokens = readings.counter(ingress.REQUEST_TOKENS, topology.pipeline)
        in_flight = readings.gauge(ingress.REQUESTS_IN_FLIGHT, topology.pipeline)
        waiting = 0.0 if in_flight is not None else None
    else:
        latency = readings.histogram(ingress.NODE_CALL_SECONDS, *own)
        busy = readings.counter(ingress.NODE_BUSY_SECONDS, *own)
        wait = readings.counter(ingress.NODE_WAIT_SECONDS, *own)
        seconds = busy
        tokens = readings.counter(ingress.NODE_TOKENS, *own)
        in_flight = None if busy is None else busy / window_s
        waiting = None if wait is None else wait / window_s
    spent_s = None if seconds is None or waiting is None else seconds + waiting * window_s
    return NodeObservation(
        node=node.id,
        function=node.function,
        kind=node.kind,
        layer=node.layer,
        expert=node.expert,
        configuration=configuration,
        ready_replicas=None if ready is None else round(ready),
        cpu_utilisation=_cpu_utilisation(configuration, ready, cpu_s, window_s, cpu_scale),
        memory_utilisation=_memory_utilisation(configuration, ready, memory),
        gpu_utilisation=None,
        concurrency_utilisation=_concurrency_utilisation(configuration, ready, in_flight),
        latency_p95_s=histogram_quantile(0.95, latency),
        latency_mean_s=_ratio(spent_s, calls),
        tokens_per_s=None if tokens is None else tokens / window_s,
        requests_per_s=None if calls is None else calls / window_s,
        in_flight=in_flight,
        waiting=waiting,
        busy_s=seconds,
        cpu_s=cpu_s,
        peak_tokens=readings.gauge(ingress.NODE_TOKENS_PEAK, *own),
    )


def _node_calls(topology: Topology, node: NodeInfo, readings: Readings) -> float | None:
    name = ingress.REQUESTS if node.kind == "ingress" else ingress.NODE_CALLS
    key = (topology.pipeline,) if node.kind == "ingress" else (topology.pipeline, node.id)
    found = [value for labels, value in readings.counters.get(name, {}).items() if labels[: len(key)] == key]
    if found:
        return sum(found)
    # A node that was never called has no series of calls, but the ingress that would count them was read.
    return 0.0 if readings.counters.get(ingress.REQUESTS) else None


def present_configuration(readings: Readings, function_name: str) -> Configuration | None:
    """CC(t) from the gateway's gauges; None when one of them is missing."""
    memory = readings.gauge(gateway.MEMORY_LIMIT_BYTES, function_name)
    cores = readings.gauge(gateway.CPU_LIMIT_CORES, function_name)
    replicas = readings.gauge(gateway.SERVICE_COUNT, function_name)
    concurrency = readings.gauge(gateway.MAX_INFLIGHT, function_name)
    if not memory or not cores or replicas is None or concurrency is None:
        return None
    return Configuration(round(memory / MIB), cores, 0.0, round(replicas), round(concurrency))


def _cpu_utilisation(
    configuration: Configuration | None, ready: float | None, cpu_s: float | None, window_s: float, scale: float | None
) -> float | None:
    if configuration is None or not configuration.cpu_cores or not ready or cpu_s is None:
        return None
    return cpu_s / (window_s * ready * configuration.cpu_cores * (scale or 1.0))


def _memory_utilisation(
    configuration: Configuration | None, ready: float | None, memory_bytes: float | None
) -> float | None:
    if configuration is None or not ready or memory_bytes is None:
        return None
    return memory_bytes / (ready * configuration.memory_mb * MIB)


def _concurrency_utilisation(
    configuration: Configuration | None, ready: float | None, in_flight: float | None
) -> float | None:
    if configuration is None or not ready or in_flight is None or not configuration.concurrency:
        return None
    return in_flight / (ready * configuration.concurrency)


def _missing(nodes: Sequence[NodeObservation]) -> tuple[str, ...]:
    without = [node.node for node in nodes if node.configuration is None]
    if not without:
        return ()
    shown = ", ".join(without[:4]) + (" …" if len(without) > 4 else "")
    return (f"no configuration is known of {len(without)} functions: {shown}",)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole:
        return None
    return part / whole
