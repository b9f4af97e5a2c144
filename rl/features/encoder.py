"""From an observation to a state: section 4.2's features of every node, and of the pipeline; the controller's and the
environment's one and only encoder."""

from __future__ import annotations

import math
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from autoscaler.capacity import total_needs
from autoscaler.contract import MIB, LayerObservation, Memory, NodeObservation, Observation, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.prices import PriceSheet
from rl.agent.contract import Floats32, Space, State
from rl.features.calls import CallTimes
from rl.features.catalogue import NODE_FEATURES, PIPELINE_FEATURES, Scales
from rl.features.configuration_index import CONCURRENCY, CORES, REPLICAS, ConfigurationIndex, space_of, unit_prices
from rl.features.history import History
from simulation.arrays import Floats

_SEEN = (
    "cpu_utilisation", "gpu_utilisation", "memory_utilisation", "concurrency_utilisation", "latency_p95_s",
    "latency_mean_s", "tokens_per_s", "requests_per_s", "in_flight", "waiting", "peak_tokens", "ready_replicas",
    "token_share", "request_share", "straggler_ratio",
)  # fmt: skip
_CONFIGURED = ("memory_mb", "cpu_cores", "gpu_share", "replicas", "concurrency")
_LAYER = ("token_routing_entropy", "latency_variance_s2", "flops_per_s", "barrier_p95_s")
_seen, _configured, _layer = attrgetter(*_SEEN), attrgetter(*_CONFIGURED), attrgetter(*_LAYER)
_AT = {name: place for place, name in enumerate(_SEEN)}
_NO_CONFIGURATION = (math.nan,) * len(_CONFIGURED)
_NO_LAYER = (math.nan,) * len(_LAYER)


class Encoder:
    """States of one pipeline. ``limits``: Φ, α and runtime memory; ``slo_s``: λ. Pure: what is remembered goes in and
    comes out. Raises ValueError for a pipeline whose functions serve several nodes, or that has no expert."""

    def __init__(
        self, topology: Topology, limits: LimitSettings, prices: PriceSheet, slo_s: float, calls: CallTimes
    ) -> None:
        shared = [name for name, nodes in topology.functions().items() if len(nodes) > 1]
        if shared:
            raise ValueError(f"{shared[0]} serves several nodes; a learnt policy needs one node a function")
        nodes = [node for node in topology.nodes if node.kind != "ingress"]
        order = {node.id: place for place, node in enumerate(nodes)}
        self.topology, self.limits, self.prices, self.slo_s, self.calls = topology, limits, prices, slo_s, calls
        self.configuration_index = ConfigurationIndex(topology, limits.space, prices)
        if not self.configuration_index.mask.any():
            raise ValueError(f"{topology.pipeline} has no expert")
        self.space: Space = space_of(topology, limits.space, prices, calls, slo_s)
        self._nodes, self._ids = nodes, [node.id for node in nodes]
        self._segments = np.array([order[f"segment-{i}"] for i in range(topology.layers + 1)])
        self._experts = np.full(self.configuration_index.mask.shape, len(nodes))
        self._experts[self.configuration_index.mask] = [
            order[node.id] for layer in range(topology.layers) for node in topology.experts(layer)
        ]
        self._is_expert = np.array([node.kind == "expert" for node in nodes])
        self._layer_of = np.array([node.layer if node.kind == "expert" else topology.layers for node in nodes])
        runtime_mb = [limits.runtime.of(frozenset((node.kind,))) for node in nodes]
        self._runtime_bytes = np.array(runtime_mb, np.float64) * MIB + [node.weights_bytes for node in nodes]
        self._bytes_per_token = np.array([node.bytes_per_token for node in nodes], dtype=np.float64)
        self._part_s = slo_s / topology.layers
        self._most_expensive = float(self.configuration_index.unit_per_s.max())
        self._node_scales, self._pipeline_scales = Scales(NODE_FEATURES), Scales(PIPELINE_FEATURES)
        self._fixed_nodes, self._fixed_pipeline = self._fixed()

    def encode(self, observation: Observation, memory: Memory = None) -> tuple[State, History]:
        """The state before anything is decided in the coming window, and what to remember. ``memory``: of the last
        call, anything else begins again."""
        nodes = self._rows(observation)
        loads = np.array([_seen(node) for node in nodes], dtype=np.float64)
        configured = np.array(
            [_NO_CONFIGURATION if node.configuration is None else _configured(node.configuration) for node in nodes],
            dtype=np.float64,
        )
        layers = {layer.layer: layer for layer in observation.layers}
        by_layer = np.array(
            [*(_of_layer(layers.get(i)) for i in range(self.topology.layers)), _NO_LAYER], dtype=np.float64
        )
        past = memory if isinstance(memory, History) else History()
        p95 = _ratio(observation.latency_p95_s, self.slo_s)
        history = past.after(_known(observation.requests_per_s), p95, loads[:, _AT["requests_per_s"]])
        rows = self._node_scales.encode(self._node_rows(observation, loads, configured, by_layer, history))
        pipeline = self._pipeline_scales.encode(self._pipeline_row(observation, loads, configured, by_layer, history))
        padded = np.concatenate([rows, np.zeros((1, rows.shape[1]), dtype=np.float32)])
        return (
            State(
                segments=padded[self._segments],
                experts=padded[self._experts],
                pipeline=pipeline[0],
                present=self._present(configured),
                least_memory=self._least_memory(loads[:, _AT["peak_tokens"]]),
                room=self.room(observation),
            ),
            history,
        )

    def room(self, observation: Observation) -> Floats32 | None:
        """[3] of the capacity that segments and ingress leave; None without one, and where they are not known."""
        others = [node.configuration for node in observation.nodes if node.kind != "expert"]
        if self.limits.capacity is None or any(configuration is None for configuration in others):
            return None
        taken = total_needs(configuration for configuration in others if configuration is not None)
        return np.array(self.limits.capacity.total.minus(taken), dtype=np.float32)

    def _rows(self, observation: Observation) -> list[NodeObservation]:
        """Segments and experts in the topology's order. Raises ValueError for an observation of another pipeline."""
        nodes = [node for node in observation.nodes if node.kind != "ingress"]
        if [node.node for node in nodes] != self._ids:
            rows = {node.node: node for node in nodes}
            if set(rows) != set(self._ids):
                raise ValueError(f"the observation is of other nodes than those of {self.topology.pipeline}")
            nodes = [rows[name] for name in self._ids]
        return nodes

    def _fixed(self) -> tuple[Floats, dict[str, float]]:
        """What never changes: [nodes, F] with NaN elsewhere, and of the pipeline by name."""
        at, layers = self._node_scales.index, self.topology.layers
        fixed = np.full((len(self._nodes), len(NODE_FEATURES)), np.nan)
        sizes = np.append(self.configuration_index.mask.sum(axis=1), 1)
        fixed[:, at["expert"]] = self._is_expert
        half = 0.5 * self._is_expert
        fixed[:, at["position"]] = (np.array([node.layer or 0 for node in self._nodes]) + half) / layers
        fixed[:, at["siblings"]] = sizes[self._layer_of]
        fixed[:, at["weights"]] = self._runtime_bytes / self.limits.alpha / MIB
        unit, calls = self.configuration_index.unit_per_s, self.calls.seconds
        pipeline = {
            "layers": layers,
            "experts": float(self.configuration_index.mask.sum()) / layers,
            "fastest": float(calls.min()) / self._part_s,
            "slowest": float(calls.max()) / self._part_s,
            "cheapest": float(unit.min()) / self._most_expensive,
            "gpu_choices": float((self.configuration_index.shares > 0).mean()),
        }
        return fixed, pipeline

    def _node_rows(
        self, observation: Observation, observed: Floats, configured: Floats, by_layer: Floats, history: History
    ) -> Floats:
        """[nodes, F] in the catalogue's units."""
        raw, at = self._fixed_nodes.copy(), self._node_scales.index
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = self._node_columns(observation.window_s, observed, configured, by_layer, history)
        for name, column in columns.items():
            raw[:, at[name]] = column
        # Everything else may be NaN; a flag is set below, where its number is.
        raw[:, [place for name, place in at.items() if name.endswith("_unknown")]] = 0.0
        return raw

    def _node_columns(
        self, window_s: float, observed: Floats, configured: Floats, by_layer: Floats, history: History
    ) -> dict[str, Floats]:
        """Name → [nodes], in the catalogue's units. In one piece: it is the catalogue's table."""
        value = dict(zip(_SEEN, observed.T, strict=True))
        memory_mb, cores, share, replicas, concurrency = configured.T
        slots_s, tokens_s = self.calls.mean_s, self.calls.mean_s / self.calls.tokens
        unit = unit_prices(self.prices, memory_mb, cores, share) / self._most_expensive
        resource = self.configuration_index.nearest(np.nan_to_num(configured, nan=1.0))[:, 1]
        call_s = np.where(self._is_expert & ~np.isnan(memory_mb), self.calls.seconds[resource], np.nan)
        mean, peak = history.node_load()
        layer = dict(zip(_LAYER, by_layer[self._layer_of].T, strict=True))
        siblings = self._fixed_nodes[:, self._node_scales.index["siblings"]]
        flops_s = tokens_s / np.maximum([node.flops_per_token for node in self._nodes], 1)
        return {
            **{name: value[name] for name in _SEEN[:4]},
            "latency_p95": value["latency_p95_s"] / self._part_s,
            "latency_mean": value["latency_mean_s"] / self._part_s,
            "memory": memory_mb,
            "cpu_cores": cores / CORES,
            "gpu_share": share,
            "on_gpu": np.where(np.isnan(share), np.nan, share > 0),
            "replicas": replicas / REPLICAS,
            "concurrency": concurrency / CONCURRENCY,
            "price": unit,
            "spend": replicas * unit,
            "call_time": call_s / self._part_s,
            "ready": np.where(replicas > 0, value["ready_replicas"] / replicas, np.nan),
            "tokens_per_s": value["tokens_per_s"] * tokens_s,
            "requests_per_s": value["requests_per_s"] * slots_s,
            "calls": value["requests_per_s"] * window_s,
            "in_flight": value["in_flight"],
            "waiting": value["waiting"],
            "tokens_per_call": _defined(value["tokens_per_s"] / value["requests_per_s"]),
            "peak": self._required_mb(value["peak_tokens"]),
            "load_mean_5": mean * slots_s,
            "load_peak_5": peak * slots_s,
            "token_share": value["token_share"] * siblings,
            "request_share": value["request_share"] * siblings,
            "entropy": _evenness(layer["token_routing_entropy"], siblings),
            "straggler": value["straggler_ratio"],
            "latency_spread": np.sqrt(layer["latency_variance_s2"]) / self._part_s,
            "layer_flops": layer["flops_per_s"] * flops_s,
            "barrier_p95": layer["barrier_p95_s"] / self._part_s,
        }

    def _pipeline_row(
        self, observation: Observation, observed: Floats, configured: Floats, by_layer: Floats, history: History
    ) -> Floats:
        """[1, G] in the catalogue's units."""
        slo_s, rate = self.slo_s, _known(observation.requests_per_s)
        requests, in_flight = _known(observation.requests), _known(observation.in_flight)
        p95 = _ratio(observation.latency_p95_s, slo_s)
        memory_mb, cores, share, replicas, _ = configured[self._is_expert].T
        spend = replicas * unit_prices(self.prices, memory_mb, cores, share) / self._most_expensive
        row = {
            **self._fixed_pipeline,
            "window": observation.window_s / slo_s,
            "latency_p50": _ratio(observation.latency_p50_s, slo_s),
            "latency_p95": p95,
            "latency_p99": _ratio(observation.latency_p99_s, slo_s),
            "over": math.nan if math.isnan(p95) else float(p95 > 1),
            "requests": requests,
            "tokens_per_request": _known(observation.tokens_per_s) / rate if rate > 0 else math.nan,
            "failed": _known(observation.failed) / requests if requests > 0 else math.nan,
            "unfinished": in_flight,
            "unfinished_share": in_flight / max(rate * slo_s, 1e-3),
            "segments": float(observed[self._segments, _AT["latency_mean_s"]].sum()) / slo_s,
            "barriers": float(by_layer[:-1, _LAYER.index("barrier_p95_s")].sum()) / slo_s,
            "spend": float(spend.mean()),
        }
        past = history.row()
        row |= {name: value * slo_s if name.startswith("load_") else value for name, value in past.items()}
        raw = np.zeros((1, len(PIPELINE_FEATURES)))
        for name, value in row.items():
            raw[0, self._pipeline_scales.index[name]] = value
        return raw

    def _required_mb(self, peak_tokens: Floats) -> Floats:
        """[nodes] MiB that Eq. (2) asks of a single replica."""
        need_bytes = self._runtime_bytes + 2 * self._bytes_per_token * peak_tokens
        return np.asarray(need_bytes / self.limits.alpha / MIB)

    def _present(self, configured: Floats) -> NDArray[np.int16]:
        """[n, K, 4]; zeros where the configuration is not known."""
        is_known = ~np.isnan(configured[:, 0])
        rows = np.zeros((len(configured) + 1, 4), dtype=np.int16)
        rows[:-1][is_known] = self.configuration_index.nearest(configured[is_known])
        return np.asarray(rows[self._experts])

    def _least_memory(self, peak_tokens: Floats) -> NDArray[np.int16]:
        """[n, K, P]; where the peak is not known, for the weights alone (the policy holds such experts)."""
        peak = np.where(np.isnan(peak_tokens), 0.0, peak_tokens)
        rows = self.configuration_index.least_memory(
            self._runtime_bytes, self._bytes_per_token, peak, self.limits.alpha
        )
        return np.asarray(np.concatenate([rows, np.zeros((1, rows.shape[1]), dtype=np.int16)])[self._experts])


def _of_layer(layer: LayerObservation | None) -> tuple[object, ...]:
    return _NO_LAYER if layer is None else _layer(layer)


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _ratio(value: float | None, whole: float) -> float:
    return math.nan if value is None else value / whole


def _defined(values: Floats) -> Floats:
    """NaN for what is not a finite number."""
    return np.where(np.isfinite(values), values, np.nan)


def _evenness(entropy: Floats, siblings: Floats) -> Floats:
    """[nodes] entropy of a layer's shares over that of even ones, log n; an expert alone counts as even. "Not known"
    (NaN) stays so, also there: 0 × keeps it."""
    even = np.log(np.where(siblings > 1, siblings, np.e))  # log 1 is 0
    return np.asarray(np.where(siblings > 1, entropy / even, 1.0 + 0 * entropy))
