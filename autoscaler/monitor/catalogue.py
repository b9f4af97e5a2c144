"""Which metric carries which series. The names are the neighbours': ``docs/metrics.md``."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.state.readings import SHAPES, Series
from functions.serving import generation_metric_names as texts
from functions.serving import metric_names as ingress
from gateway import metric_names as gateway

METRICS: Mapping[Series, str] = {
    Series.REQUESTS: ingress.REQUESTS,
    Series.REQUEST_SECONDS: ingress.REQUEST_SECONDS,
    Series.REQUEST_SECONDS_SUM: f"{ingress.REQUEST_SECONDS}_sum",
    Series.REQUEST_TOKENS: ingress.REQUEST_TOKENS,
    Series.ARRIVAL_RATES: ingress.ARRIVAL_RATES,
    Series.REQUESTS_IN_FLIGHT: ingress.REQUESTS_IN_FLIGHT,
    Series.NODE_CALLS: ingress.NODE_CALLS,
    Series.NODE_CALL_SECONDS: ingress.NODE_CALL_SECONDS,
    Series.NODE_WAIT_SECONDS: ingress.NODE_WAIT_SECONDS,
    Series.NODE_BUSY_SECONDS: ingress.NODE_BUSY_SECONDS,
    Series.NODE_TOKENS: ingress.NODE_TOKENS,
    Series.NODE_TOKENS_PEAK: ingress.NODE_TOKENS_PEAK,
    Series.LAYER_BARRIER_SECONDS: ingress.LAYER_BARRIER_SECONDS,
    Series.TEXTS_RUNNING: texts.TEXTS_RUNNING,
    Series.TEXTS_WAITING: texts.TEXTS_WAITING,
    Series.KV_USAGE: texts.KV_USAGE,
    Series.TTFT_SECONDS: texts.TTFT_SECONDS,
    Series.TPOT_SECONDS: texts.TPOT_SECONDS,
    Series.PROMPT_TOKENS: texts.PROMPT_TOKENS,
    Series.WRITTEN_TOKENS: texts.WRITTEN_TOKENS,
    Series.PREEMPTIONS: texts.PREEMPTIONS,
    Series.REPLICAS_WANTED: gateway.SERVICE_COUNT,
    Series.REPLICAS_BY_STATE: gateway.FUNCTION_REPLICAS,
    Series.STANDBY_ACTIVATED_SECONDS: gateway.STANDBY_ACTIVATED_SECONDS,
    Series.REPLICA_CPU_SECONDS: gateway.REPLICA_CPU_SECONDS,
    Series.REPLICA_MEMORY_BYTES: gateway.REPLICA_MEMORY_BYTES,
    Series.CPU_LIMIT_CORES: gateway.CPU_LIMIT_CORES,
    Series.MEMORY_LIMIT_BYTES: gateway.MEMORY_LIMIT_BYTES,
    Series.MAX_INFLIGHT: gateway.MAX_INFLIGHT,
    Series.CPU_SCALE: gateway.CPU_SCALE,
}

SAMPLES: Mapping[str, Series] = {
    name + ("_bucket" if SHAPES[series].kind == "histogram" else ""): series for series, name in METRICS.items()
}
"""Name of a sample in an exposition → its series."""
