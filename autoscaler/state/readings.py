"""What a metrics source has read for one window, before it means anything: numbers by series and label values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

Key = tuple[str, ...]
"""Label values, in the order of the series' ``labels``."""
Buckets = tuple[tuple[float, float], ...]
"""(upper bound in seconds or tokens a second, increase of the cumulative count), ascending, the last bound infinite."""


LARGEST = 1e15
"""What is read lies from 0 up to below this; anything else (NaN, an infinity, less than nothing) is no number."""


class Series(StrEnum):
    """Everything a window is made of; which metric carries it is the monitor's affair. Times are seconds."""

    REQUESTS = "requests"
    REQUEST_SECONDS = "request_seconds"
    REQUEST_SECONDS_SUM = "request_seconds_sum"
    REQUEST_TOKENS = "request_tokens"
    ARRIVAL_RATES = "arrival_rates"
    REQUESTS_IN_FLIGHT = "requests_in_flight"
    NODE_CALLS = "node_calls"
    NODE_CALL_SECONDS = "node_call_seconds"
    NODE_WAIT_SECONDS = "node_wait_seconds"
    NODE_BUSY_SECONDS = "node_busy_seconds"
    NODE_TOKENS = "node_tokens"
    NODE_TOKENS_PEAK = "node_tokens_peak"
    LAYER_BARRIER_SECONDS = "layer_barrier_seconds"
    TEXTS_RUNNING = "texts_running"
    TEXTS_WAITING = "texts_waiting"
    KV_USAGE = "kv_usage"
    TTFT_SECONDS = "ttft_seconds"
    TPOT_SECONDS = "tpot_seconds"
    PROMPT_TOKENS = "prompt_tokens"
    WRITTEN_TOKENS = "written_tokens"
    PREEMPTIONS = "preemptions"
    REPLICAS_WANTED = "replicas_wanted"
    REPLICAS_BY_STATE = "replicas_by_state"
    STANDBY_ACTIVATED_SECONDS = "standby_activated_seconds"
    REPLICA_CPU_SECONDS = "replica_cpu_seconds"
    REPLICA_MEMORY_BYTES = "replica_memory_bytes"
    CPU_LIMIT_CORES = "cpu_limit_cores"
    MEMORY_LIMIT_BYTES = "memory_limit_bytes"
    MAX_INFLIGHT = "max_inflight"
    CPU_SCALE = "cpu_scale"


Kind = Literal["counter", "gauge", "max", "histogram"]
Job = Literal["ingress", "gateway"]


@dataclass(frozen=True)
class Shape:
    """How a series is read.

    Over the window, series that share a key are summed: ``counter`` the increases, ``histogram`` the increases of each
    bucket, ``gauge`` the latest values; of ``max`` the largest of the latest values is taken. With ``counted``, also
    how many series there are.
    """

    kind: Kind
    labels: tuple[str, ...]
    job: Job
    counted: bool = False


_PIPELINE = ("pipeline",)
_MODEL = ("model_name",)
_NODE = ("pipeline", "node")
_FUNCTION = ("function_name",)

SHAPES: Mapping[Series, Shape] = {
    Series.REQUESTS: Shape("counter", ("pipeline", "code"), "ingress"),
    Series.REQUEST_SECONDS: Shape("histogram", _PIPELINE, "ingress"),
    Series.REQUEST_SECONDS_SUM: Shape("counter", _PIPELINE, "ingress"),
    Series.REQUEST_TOKENS: Shape("counter", _PIPELINE, "ingress"),
    Series.ARRIVAL_RATES: Shape("histogram", ("pipeline", "look_back"), "ingress"),
    Series.REQUESTS_IN_FLIGHT: Shape("gauge", _PIPELINE, "ingress"),
    Series.NODE_CALLS: Shape("counter", (*_NODE, "code"), "ingress"),
    Series.NODE_CALL_SECONDS: Shape("histogram", _NODE, "ingress"),
    Series.NODE_WAIT_SECONDS: Shape("counter", _NODE, "ingress"),
    Series.NODE_BUSY_SECONDS: Shape("counter", _NODE, "ingress"),
    Series.NODE_TOKENS: Shape("counter", _NODE, "ingress"),
    Series.NODE_TOKENS_PEAK: Shape("gauge", _NODE, "ingress"),
    Series.LAYER_BARRIER_SECONDS: Shape("histogram", ("pipeline", "layer"), "ingress"),
    Series.TEXTS_RUNNING: Shape("gauge", _MODEL, "ingress"),
    Series.TEXTS_WAITING: Shape("gauge", _MODEL, "ingress"),
    Series.KV_USAGE: Shape("gauge", _MODEL, "ingress"),
    Series.TTFT_SECONDS: Shape("histogram", _MODEL, "ingress"),
    Series.TPOT_SECONDS: Shape("histogram", _MODEL, "ingress"),
    Series.PROMPT_TOKENS: Shape("counter", _MODEL, "ingress"),
    Series.WRITTEN_TOKENS: Shape("counter", _MODEL, "ingress"),
    Series.PREEMPTIONS: Shape("counter", _MODEL, "ingress"),
    Series.REPLICAS_WANTED: Shape("max", _FUNCTION, "gateway"),
    Series.REPLICAS_BY_STATE: Shape("max", ("function_name", "state"), "gateway"),
    Series.STANDBY_ACTIVATED_SECONDS: Shape("counter", _FUNCTION, "gateway"),
    Series.REPLICA_CPU_SECONDS: Shape("counter", _FUNCTION, "gateway", counted=True),
    Series.REPLICA_MEMORY_BYTES: Shape("gauge", _FUNCTION, "gateway", counted=True),
    Series.CPU_LIMIT_CORES: Shape("max", _FUNCTION, "gateway"),
    Series.MEMORY_LIMIT_BYTES: Shape("max", _FUNCTION, "gateway"),
    Series.MAX_INFLIGHT: Shape("max", _FUNCTION, "gateway"),
    Series.CPU_SCALE: Shape("max", (), "gateway"),
}

Values = Mapping[Series, Mapping[Key, float]]


@dataclass(frozen=True)
class Readings:
    """One window, from ``start_s`` to ``end_s`` in Unix time. What is not in a mapping was not there to be read."""

    start_s: float
    end_s: float
    values: Values = field(default_factory=dict)
    """Counters (increase over the window) and gauges (latest)."""
    histograms: Mapping[Series, Mapping[Key, Buckets]] = field(default_factory=dict)
    counts: Values = field(default_factory=dict)
    """Number of ``counted`` series: how many there are now that were also there when the window began."""
    measured: Values = field(default_factory=dict)
    """Increase of ``counted`` counters: the increase of those alone, so that sum and count are of the same series."""
    ages_s: Mapping[Job, float] = field(default_factory=dict)
    """Seconds since the last sample of each kind of target, at ``end_s``."""
    problems: tuple[str, ...] = ()
    stale: bool = False
    """Too little or too old to decide on; ``problems`` names the reason."""
    tails: Values = field(default_factory=dict)
    """P95 in seconds of histograms of which the source gives nothing else."""

    def value(self, series: Series, *key: str) -> float | None:
        return self.values.get(series, {}).get(key)

    def count(self, series: Series, *key: str) -> int | None:
        count = self.counts.get(series, {}).get(key)
        return None if count is None else round(count)

    def histogram(self, series: Series, *key: str) -> Buckets | None:
        return self.histograms.get(series, {}).get(key)

    def total(self, series: Series, *key: str) -> float | None:
        """Sum over all keys that begin with ``key``; None where there is none."""
        return self.totals(series, len(key)).get(key)

    def totals(self, series: Series, length: int) -> Mapping[Key, float]:
        """Sums over all keys that begin with the same ``length`` label values."""
        if length == len(SHAPES[series].labels):
            return self.values.get(series, {})
        if (series, length) not in self._totals:
            sums: dict[Key, float] = {}
            for labels, value in self.values.get(series, {}).items():
                sums[labels[:length]] = sums.get(labels[:length], 0.0) + value
            self._totals[series, length] = sums
        return self._totals[series, length]

    @cached_property
    def _totals(self) -> dict[tuple[Series, int], dict[Key, float]]:
        """Sums already made, by series and length of key: thousands of nodes ask."""
        return {}

    @property
    def window_s(self) -> float:
        return self.end_s - self.start_s
