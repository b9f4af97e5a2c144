"""The features of section 4.2 of the sMoE paper, computed from one window's readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from autoscaler.state.readings import Readings, Series
from autoscaler.state.shares import ratio, routing_entropy, tails, total, variance, with_fields, with_shares

NAMESPACE = "openfaas-fn"


def observe(topology: Topology, readings: Readings) -> Observation:
    """All features of one window. Numbers that could not be read are None; ``problems`` says why."""
    pipeline = topology.pipeline
    window_s = readings.window_s
    nodes = [_node(pipeline, node, readings) for node in topology.nodes]
    layers = []
    for layer in range(topology.layers):
        members = [i for i, node in enumerate(topology.nodes) if node.kind == "expert" and node.layer == layer]
        shared = with_shares([nodes[i] for i in members])
        for i, node in zip(members, shared, strict=True):
            nodes[i] = node
        layers.append(_layer(topology, layer, shared, readings))
    latency = readings.histogram(Series.REQUEST_SECONDS, pipeline)
    requests = readings.total(Series.REQUESTS, pipeline)
    tokens = readings.value(Series.REQUEST_TOKENS, pipeline)
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
        layers=tuple(layers),
        problems=readings.problems,
        stale=readings.stale or requests is None,
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


def _node(pipeline: str, node: NodeInfo, readings: Readings) -> NodeObservation:
    function_name = f"{node.function}.{NAMESPACE}"
    configuration = present_configuration(readings, function_name)
    work = _ingress_work(pipeline, readings) if node.kind == "ingress" else _node_work(pipeline, node.id, readings)
    ready = readings.value(Series.REPLICAS_BY_STATE, function_name, "ready")
    cpu_s = readings.value(Series.REPLICA_CPU_SECONDS, function_name)
    measured = readings.count(Series.REPLICA_CPU_SECONDS, function_name)
    window_s = readings.window_s
    spent_s = total([work["busy_s"], work["wait_s"]])
    in_flight = ratio(work["busy_s"], window_s)
    return NodeObservation(
        node=node.id,
        function=node.function,
        kind=node.kind,
        layer=node.layer,
        expert=node.expert,
        configuration=configuration,
        ready_replicas=None if ready is None else round(ready),
        cpu_utilisation=_cpu_utilisation(configuration, function_name, readings),
        memory_utilisation=_memory_utilisation(configuration, function_name, readings),
        gpu_utilisation=None,
        concurrency_utilisation=_concurrency_utilisation(configuration, ready, in_flight),
        latency_p95_s=histogram_quantile(0.95, _latency(pipeline, node, readings)),
        latency_mean_s=ratio(spent_s, work["calls"]),
        tokens_per_s=ratio(work["tokens"], window_s),
        requests_per_s=ratio(work["calls"], window_s),
        in_flight=in_flight,
        waiting=ratio(work["wait_s"], window_s),
        busy_s=work["busy_s"],
        cpu_s=cpu_s,
        peak_tokens=readings.value(Series.NODE_TOKENS_PEAK, pipeline, node.id),
        measured_replicas=measured,
        age_s=max(readings.ages_s.values()) if len(readings.ages_s) == 2 else None,
    )


def _latency(pipeline: str, node: NodeInfo, readings: Readings) -> tuple[tuple[float, float], ...] | None:
    if node.kind == "ingress":
        return readings.histogram(Series.REQUEST_SECONDS, pipeline)
    return readings.histogram(Series.NODE_CALL_SECONDS, pipeline, node.id)


def _ingress_work(pipeline: str, readings: Readings) -> dict[str, float | None]:
    """Calls, tokens, seconds at replicas and seconds waited, in this window. Nothing waits in front of the ingress."""
    calls = readings.total(Series.REQUESTS, pipeline)
    return {
        "calls": calls,
        "tokens": readings.value(Series.REQUEST_TOKENS, pipeline),
        "busy_s": readings.value(Series.REQUEST_SECONDS_SUM, pipeline),
        "wait_s": None if calls is None else 0.0,
    }


def _node_work(pipeline: str, node_id: str, readings: Readings) -> dict[str, float | None]:
    """The same of a segment or expert.

    A node that was never called may have no series yet; where the ingress that would count its calls was read, that is
    a zero and not a gap.
    """
    counted = readings.total(Series.REQUESTS, pipeline) is not None
    names = {
        "calls": Series.NODE_CALLS,
        "tokens": Series.NODE_TOKENS,
        "busy_s": Series.NODE_BUSY_SECONDS,
        "wait_s": Series.NODE_WAIT_SECONDS,
    }
    found = {name: readings.total(series, pipeline, node_id) for name, series in names.items()}
    return {name: 0.0 if value is None and counted else value for name, value in found.items()}


def present_configuration(readings: Readings, function_name: str) -> Configuration | None:
    """CC(t) from the gateway's gauges; None when one of them is missing."""
    memory_bytes = readings.value(Series.MEMORY_LIMIT_BYTES, function_name)
    cores = readings.value(Series.CPU_LIMIT_CORES, function_name)
    replicas = readings.value(Series.REPLICAS_WANTED, function_name)
    concurrency = readings.value(Series.MAX_INFLIGHT, function_name)
    if not memory_bytes or not cores or replicas is None or concurrency is None:
        return None
    return Configuration(max(1, round(memory_bytes / MIB)), cores, 0.0, round(replicas), round(concurrency))


def _cpu_utilisation(configuration: Configuration | None, function_name: str, readings: Readings) -> float | None:
    """CPU time used over CPU time configured, of the replicas that were there during the whole window."""
    cpu_s = readings.measured.get(Series.REPLICA_CPU_SECONDS, {}).get((function_name,))
    replicas = readings.count(Series.REPLICA_CPU_SECONDS, function_name)
    if configuration is None or not configuration.cpu_cores or not replicas or cpu_s is None:
        return None
    real_per_configured = readings.value(Series.CPU_SCALE) or 1.0
    return ratio(cpu_s, readings.window_s * replicas * configuration.cpu_cores * real_per_configured)


def _memory_utilisation(configuration: Configuration | None, function_name: str, readings: Readings) -> float | None:
    used_bytes = readings.value(Series.REPLICA_MEMORY_BYTES, function_name)
    replicas = readings.count(Series.REPLICA_MEMORY_BYTES, function_name)
    if configuration is None or used_bytes is None or not replicas:
        return None
    return used_bytes / (replicas * configuration.memory_mb * MIB)


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
            node = with_fields(node, configuration=configuration, concurrency_utilisation=slots)
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
