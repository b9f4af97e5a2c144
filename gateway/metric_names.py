"""Names of the metrics the gateway exposes; the controller's monitor imports this module alone.

``function_name`` is ``NAME.NAMESPACE``. The first group is OpenFaaS's own, so that dashboards and rules written for
OpenFaaS work unchanged; the second is about replicas and comes from the backend.
"""

from __future__ import annotations

INVOCATIONS = "gateway_function_invocation_total"
"""Counter {function_name, code}: replies handed to the caller; code is the HTTP status as text."""
SECONDS = "gateway_functions_seconds"
"""Histogram {function_name, code}: from the whole request head until the reply's last byte."""
STARTED = "gateway_function_invocation_started"
"""Counter {function_name}: calls begun."""
IN_FLIGHT = "gateway_function_invocation_inflight"
"""Gauge {function_name}: calls begun and not yet answered."""
SERVICE_COUNT = "gateway_service_count"
"""Gauge {function_name}: desired replicas."""

REPLICA_CPU_SECONDS = "smoe_replica_cpu_seconds_total"
"""Counter {function_name, replica}."""
REPLICA_MEMORY_BYTES = "smoe_replica_memory_bytes"
"""Gauge {function_name, replica}: proportional set size, or the control group's usage."""
FUNCTION_REPLICAS = "smoe_function_replicas"
"""Gauge {function_name, state}: state is starting, ready or draining."""
REPLICA_RESTARTS = "smoe_replica_restarts_total"
"""Counter {function_name}: replicas started again after a crash."""
REPLICA_START_SECONDS = "smoe_replica_start_seconds"
"""Histogram: from the wish for a replica until it is ready."""
FUNCTION_CPU_LIMIT_CORES = "smoe_function_cpu_limit_cores"
"""Gauge {function_name}: configured cores a replica; absent where there is no limit."""
FUNCTION_MEMORY_LIMIT_BYTES = "smoe_function_memory_limit_bytes"
"""Gauge {function_name}: configured bytes a replica; absent where there is no limit."""
FUNCTION_MAX_IN_FLIGHT = "smoe_function_max_inflight"
"""Gauge {function_name}: calls a replica takes at once; 0 means unlimited."""
ASYNC_PENDING = "smoe_async_pending"
"""Gauge: accepted asynchronous calls that are not finished."""
CALLBACK_FAILURES = "smoe_async_callback_failures_total"
"""Counter: callbacks given up after every try."""
RETRIES = "smoe_gateway_retries_total"
"""Counter {function_name, reason}: calls repeated on another replica; reason is connect or failed."""

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of SECONDS: the Go client's defaults, as OpenFaaS has them."""
START_BUCKETS = tuple(0.0005 * 1.3**i for i in range(45))
"""Bounds of REPLICA_START_SECONDS: 0.5 ms to 51 s."""
