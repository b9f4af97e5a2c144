"""Names of the metrics the ingress exposes; the controller's monitor imports this module alone.

Units are in the names (base units). Labels: ``pipeline``, and ``node`` or ``layer`` where one is meant.
"""

from __future__ import annotations

REQUESTS = "smoe_requests_total"
"""Counter {pipeline, code}: requests answered by the ingress."""
REQUEST_SECONDS = "smoe_request_seconds"
"""Histogram {pipeline}: from the last byte of the request until the answer is handed to the socket."""
REQUESTS_IN_FLIGHT = "smoe_requests_in_flight"
"""Gauge {pipeline}."""
REQUEST_TOKENS = "smoe_request_tokens_total"
"""Counter {pipeline}: tokens of answered requests."""
NODE_CALLS = "smoe_node_calls_total"
"""Counter {pipeline, node, code}: calls finished; code is the HTTP status, or ``error`` when there was none."""
NODE_CALL_SECONDS = "smoe_node_call_seconds"
"""Histogram {pipeline, node}: from the wish to call until the reply, waiting for a free slot included."""
NODE_WAIT_SECONDS = "smoe_node_wait_seconds_total"
"""Counter {pipeline, node}: seconds calls waited at the ingress for a free slot."""
NODE_BUSY_SECONDS = "smoe_node_busy_seconds_total"
"""Counter {pipeline, node}: seconds calls spent at replicas; its rate is the mean number of calls in flight."""
NODE_TOKENS = "smoe_node_tokens_total"
"""Counter {pipeline, node}: tokens sent to the node."""
NODE_IN_FLIGHT = "smoe_node_in_flight"
"""Gauge {pipeline, node}: calls at replicas now."""
NODE_TOKENS_PEAK = "smoe_node_tokens_in_flight_peak"
"""Gauge {pipeline, node}: most tokens in flight at once during the last 60 s (P of Eq. (2))."""
NODE_RETRIES = "smoe_node_retries_total"
"""Counter {pipeline, node, reason}: calls repeated; reason is connect, broken, status or busy."""
LAYER_BARRIER_SECONDS = "smoe_layer_barrier_seconds"
"""Histogram {pipeline, layer}: from scatter until the last gather of an MoE layer."""

PEAK_WINDOW_S = 60.0
BUCKETS_S: tuple[float, ...] = tuple(round(0.0005 * 1.3**i, 9) for i in range(45))
"""Upper bounds of all histograms, 0.5 ms to 51 s, each 1.3 times the one before."""
