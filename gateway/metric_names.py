"""Names of the metrics on the gateway's metrics port. The first five are OpenFaaS's, names and labels.

``function_name`` is ``NAME.NAMESPACE`` everywhere.
"""

from __future__ import annotations

INVOCATIONS = "gateway_function_invocation_total"
"""Counter {function_name, code}: calls through the gateway that ended."""
INVOCATION_SECONDS = "gateway_functions_seconds"
"""Histogram {function_name, code}: their duration; buckets from 5 ms to 10 s."""
INVOCATIONS_STARTED = "gateway_function_invocation_started"
"""Untyped {function_name}: calls begun; a counter."""
INVOCATIONS_IN_FLIGHT = "gateway_function_invocation_inflight"
"""Gauge {function_name}: calls in flight."""
SERVICE_COUNT = "gateway_service_count"
"""Gauge {function_name}: replicas ordered."""
REPLICA_CPU_SECONDS = "smoe_replica_cpu_seconds_total"
"""Counter {function_name, replica}: CPU time a replica has used."""
REPLICA_MEMORY_BYTES = "smoe_replica_memory_bytes"
"""Gauge {function_name, replica}: memory used, of its control group, else its proportional set size."""
FUNCTION_REPLICAS = "smoe_function_replicas"
"""Gauge {function_name, state}: replicas that are starting, ready, draining; standbys that wait (standby) or are
activated."""
STANDBYS = "smoe_function_standbys"
"""Gauge {function_name}: standbys that a function is to have; functions without any are missing."""
STANDBY_ACTIVATED_SECONDS = "smoe_standby_activated_seconds_total"
"""Counter {function_name}: seconds in which standbys were activated, summed over them."""
MIN_REPLICAS = "smoe_function_min_replicas"
"""Gauge {function_name}: least replicas, the label ``com.openfaas.scale.min``, 1 without it."""
REPLICA_RESTARTS = "smoe_replica_restarts_total"
"""Counter {function_name}: replicas started again after a crash."""
REPLICA_START_SECONDS = "smoe_replica_start_seconds"
"""Histogram: from the order to start a replica until it is ready."""
CPU_LIMIT_CORES = "smoe_function_cpu_limit_cores"
"""Gauge {function_name}: configured cores a replica, before ``--cpu-scale``; absent without a limit."""
MEMORY_LIMIT_BYTES = "smoe_function_memory_limit_bytes"
"""Gauge {function_name}: a replica's memory limit; absent without one."""
GPU_SHARE = "smoe_function_gpu_share"
"""Gauge {function_name}: a replica's part of one GPU; absent on the CPU."""
MAX_INFLIGHT = "smoe_function_max_inflight"
"""Gauge {function_name}: calls a replica takes at once; 0 = no limit."""
CPU_SCALE = "smoe_cpu_scale"
"""Gauge: real cores per configured core."""
ASYNC_PENDING = "smoe_async_pending"
"""Gauge: asynchronous calls accepted and not finished; with ``--nats``, those running here."""
CALLBACK_FAILURES = "smoe_async_callback_failures_total"
"""Counter: callbacks given up after their last try."""
REPEATS = "smoe_gateway_repeats_total"
"""Counter {function_name, reason}: calls tried again; reason is connect (it was not sent) or failed."""

GO_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
START_BUCKETS_S = tuple(0.0005 * 1.3**i for i in range(45))
