"""The metrics that are read, and how."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.state.readings import Wanted
from functions.shared import metric_names as ingress
from gateway import metric_names as gateway

_NODE = ("pipeline", "node")
_FUNCTION = ("function_name",)

CATALOGUE: Mapping[str, Wanted] = {
    ingress.REQUESTS: Wanted("counter", ("pipeline", "code"), "ingress"),
    ingress.REQUEST_SECONDS: Wanted("histogram", ("pipeline",), "ingress"),
    ingress.REQUEST_TOKENS: Wanted("counter", ("pipeline",), "ingress"),
    ingress.REQUESTS_IN_FLIGHT: Wanted("gauge", ("pipeline",), "ingress"),
    ingress.NODE_CALLS: Wanted("counter", (*_NODE, "code"), "ingress"),
    ingress.NODE_CALL_SECONDS: Wanted("histogram", _NODE, "ingress"),
    ingress.NODE_WAIT_SECONDS: Wanted("counter", _NODE, "ingress"),
    ingress.NODE_BUSY_SECONDS: Wanted("counter", _NODE, "ingress"),
    ingress.NODE_TOKENS: Wanted("counter", _NODE, "ingress"),
    ingress.NODE_TOKENS_PEAK: Wanted("gauge", _NODE, "ingress"),
    ingress.LAYER_BARRIER_SECONDS: Wanted("histogram", ("pipeline", "layer"), "ingress"),
    gateway.SERVICE_COUNT: Wanted("max", _FUNCTION, "gateway"),
    gateway.FUNCTION_REPLICAS: Wanted("max", ("function_name", "state"), "gateway"),
    gateway.REPLICA_CPU_SECONDS: Wanted("counter", _FUNCTION, "gateway"),
    gateway.REPLICA_MEMORY_BYTES: Wanted("gauge", _FUNCTION, "gateway"),
    gateway.CPU_LIMIT_CORES: Wanted("max", _FUNCTION, "gateway"),
    gateway.MEMORY_LIMIT_BYTES: Wanted("max", _FUNCTION, "gateway"),
    gateway.MAX_INFLIGHT: Wanted("max", _FUNCTION, "gateway"),
    gateway.CPU_SCALE: Wanted("max", (), "gateway"),
}
