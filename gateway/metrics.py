"""The metrics port: OpenFaaS's gateway metrics, and what the backend knows of replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway import metric_names as names
from gateway.contract import Backend, FunctionSpec, FunctionState, InvalidSpecError
from gateway.specs import max_inflight, scale_bounds
from platform_words.resources import GPU, GPU_TENTHS, parse_quantity

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class GatewayMetrics:
    """Counts calls; asks the backend about replicas when scraped."""

    def __init__(self, backend: Backend, cpu_scale: float) -> None:
        self._backend = backend
        self._cpu_scale = cpu_scale
        self.registry = prometheus_client.CollectorRegistry()
        label = ["function_name", "code"]
        self._calls = prometheus_client.Counter(
            names.INVOCATIONS.removesuffix("_total"), "Function calls", label, registry=self.registry
        )
        self._seconds = prometheus_client.Histogram(
            names.INVOCATION_SECONDS,
            "Time of function calls",
            label,
            buckets=names.GO_BUCKETS_S,
            registry=self.registry,
        )
        self._starts = prometheus_client.Histogram(
            names.REPLICA_START_SECONDS,
            "Order to ready of replicas",
            buckets=names.START_BUCKETS_S,
            registry=self.registry,
        )
        self._started: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._repeats: Counter[tuple[str, str]] = Counter()
        self.invocations: Counter[str] = Counter()
        self.async_pending = 0
        self.callback_failures = 0
        self.registry.register(self)

    def begin(self, function_name: str) -> None:
        self._started[function_name] += 1
        self._in_flight[function_name] += 1

    def end(self, function_name: str, code: int, seconds: float) -> None:
        self._in_flight[function_name] -= 1
        self.invocations[function_name] += 1
        text = str(code)
        self._calls.labels(function_name, text).inc()
        self._seconds.labels(function_name, text).observe(seconds)

    def repeated(self, function_name: str, reason: Literal["connect", "failed"]) -> None:
        self._repeats[function_name, reason] += 1

    def text(self) -> bytes:
        """Prometheus text format."""
        for seconds in self._backend.start_seconds():
            self._starts.observe(seconds)
        return bytes(prometheus_client.generate_latest(self.registry))

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        # OpenFaaS names this counter without _total; only an untyped family keeps the name as it is.
        started = Metric(names.INVOCATIONS_STARTED, "Function calls begun", "untyped")
        for function_name, count in self._started.items():
            started.add_sample(names.INVOCATIONS_STARTED, {"function_name": function_name}, count)
        in_flight = GaugeMetricFamily(names.INVOCATIONS_IN_FLIGHT, "Function calls in flight", labels=["function_name"])
        for function_name, count in self._in_flight.items():
            in_flight.add_metric([function_name], count)
        scale = GaugeMetricFamily(names.CPU_SCALE, "Real cores per configured core")
        scale.add_metric([], self._cpu_scale)
        yield from (started, in_flight, scale, *self._own_families())
        functions = self._backend.list()
        yield from self._function_families(functions)
        yield from self._limit_families(functions)
        yield from self._usage_families(functions)

    def _own_families(self) -> Iterator[Metric]:
        repeats = CounterMetricFamily(names.REPEATS, "Calls tried again", labels=["function_name", "reason"])
        for (function_name, reason), count in self._repeats.items():
            repeats.add_metric([function_name, reason], count)
        yield repeats
        yield GaugeMetricFamily(names.ASYNC_PENDING, "Asynchronous calls not finished", self.async_pending)
        yield CounterMetricFamily(names.CALLBACK_FAILURES, "Callbacks given up", self.callback_failures)

    def _function_families(self, functions: list[FunctionState]) -> Iterator[Metric]:
        one = ["function_name"]
        wanted = GaugeMetricFamily(names.SERVICE_COUNT, "Desired replicas", labels=one)
        states = GaugeMetricFamily(names.FUNCTION_REPLICAS, "Replicas by state", labels=["function_name", "state"])
        standbys = GaugeMetricFamily(names.STANDBYS, "Standbys to have", labels=one)
        activated = CounterMetricFamily(names.STANDBY_ACTIVATED_SECONDS, "Time of activated standbys", labels=one)
        least = GaugeMetricFamily(names.MIN_REPLICAS, "Least replicas", labels=one)
        restarts = CounterMetricFamily(names.REPLICA_RESTARTS, "Restarts after crashes", labels=one)
        inflight_limit = GaugeMetricFamily(names.MAX_INFLIGHT, "Calls a replica takes at once", labels=one)
        for state in functions:
            spec, key = state.spec, state.spec.key
            wanted.add_metric([key], state.desired_replicas)
            minimum = _min_replicas(spec)
            if minimum is not None:
                least.add_metric([key], minimum)
            restarts.add_metric([key], state.restarts)
            inflight_limit.add_metric([key], max_inflight(spec))
            counts = Counter(replica.state for replica in state.replicas)
            for name in ("starting", "draining"):
                states.add_metric([key, name], counts[name])
            ready = state.available if state.sleeps else counts["ready"] - state.activated
            states.add_metric([key, "ready"], ready)
            if state.standbys:
                activated_now = max(0, counts["ready"] - ready)
                states.add_metric([key, "standby"], counts["standby"] + counts["ready"] - activated_now - ready)
                states.add_metric([key, "activated"], activated_now)
                standbys.add_metric([key], state.standbys)
            if state.standbys or state.activated_s:  # a counter that comes back would seem to have grown by all it has
                activated.add_metric([key], state.activated_s)
        yield from (wanted, states, standbys, activated, least, restarts, inflight_limit)

    def _limit_families(self, functions: list[FunctionState]) -> Iterator[Metric]:
        one = ["function_name"]
        cpu_limit = GaugeMetricFamily(names.CPU_LIMIT_CORES, "Configured cores a replica", labels=one)
        memory_limit = GaugeMetricFamily(names.MEMORY_LIMIT_BYTES, "Memory limit a replica", labels=one)
        gpu_share = GaugeMetricFamily(names.GPU_SHARE, "Part of one GPU a replica", labels=one)
        for state in functions:
            spec, key = state.spec, state.spec.key
            if "cpu" in spec.limits:
                cpu_limit.add_metric([key], float(parse_quantity(spec.limits["cpu"])))
            if "memory" in spec.limits:
                memory_limit.add_metric([key], float(parse_quantity(spec.limits["memory"])))
            if GPU in spec.limits:
                gpu_share.add_metric([key], float(parse_quantity(spec.limits[GPU])) / GPU_TENTHS)
        yield from (cpu_limit, memory_limit, gpu_share)

    def _usage_families(self, functions: list[FunctionState]) -> Iterator[Metric]:
        two = ["function_name", "replica"]
        cpu = CounterMetricFamily(names.REPLICA_CPU_SECONDS, "CPU time of a replica", labels=two)
        memory = GaugeMetricFamily(names.REPLICA_MEMORY_BYTES, "Memory of a replica", labels=two)
        for state in functions:
            spec, key = state.spec, state.spec.key
            for replica_id, usage in self._backend.usage(spec.name, spec.namespace).items():
                if usage.cpu_seconds_total is not None:
                    cpu.add_metric([key, replica_id], usage.cpu_seconds_total)
                if usage.memory_bytes is not None:
                    memory.add_metric([key, replica_id], usage.memory_bytes)
        yield from (cpu, memory)


def _min_replicas(spec: FunctionSpec) -> int | None:
    """None where a label that somebody else wrote is no number."""
    try:
        return scale_bounds(spec)[0]
    except InvalidSpecError:
        return None
