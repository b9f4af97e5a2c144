"""Names of the metrics the ingress exposes; the controller's monitor imports this module alone.

Units are in the names (base units). Labels: ``pipeline``, and ``node`` or ``layer`` where one is meant.
"""

from __future__ import annotations

REQUESTS = "smoe_requests_total"
"""Counter {pipeline, code}: requests answered by the ingress."""
REQUEST_SECONDS = "smoe_request_seconds"
"""Histogram {pipeline}: from the last byte of the request until the answer is handed to the socket. Failed requests
(5xx, 429) count as slower than every bucket, however soon they were turned away."""
REQUESTS_IN_FLIGHT = "smoe_requests_in_flight"
"""Gauge {pipeline}: requests not yet answered."""
REQUEST_TOKENS = "smoe_request_tokens_total"
"""Counter {pipeline}: tokens of requests answered with 200."""
NODE_CALLS = "smoe_node_calls_total"
"""Counter {pipeline, node, code}: calls finished; code is the HTTP status, or ``error`` when there was none."""
NODE_CALL_SECONDS = "smoe_node_call_seconds"
"""Histogram {pipeline, node}: from the moment a call is due until the reply, waiting for a free slot included."""
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
MACHINE_CALLS = "smoe_machine_calls_total"
"""Counter {pipeline, machine, place, kind}: calls that replicas of a machine served; kind is expert or segment, place
is local on the ingress's own machine, else remote. Of replicas whose machine is known; beyond 64 machines: others."""
MACHINE_MESSAGES = "smoe_machine_messages_total"
"""Counter {pipeline, machine, place}: messages sent to a machine; in two-phase transfer one serves several experts."""
MACHINE_BYTES = "smoe_machine_bytes_total"
"""Counter {pipeline, machine, place, direction}: bodies sent and received."""
FULLEST_EXPERTS = "smoe_layer_fullest_experts_total"
"""Counter {pipeline, layer}: activated experts of the machine with the most of them, summed over scatters."""
SCATTERS = "smoe_layer_scatters_total"
"""Counter {pipeline, layer}: scatters to replicas whose machines are known."""
ENTROPY = "smoe_layer_entropy_bits"
"""Gauge {pipeline, layer}: Shannon entropy of the experts' tokens over ``smoe_statistics_window``."""
LINK_SECONDS = "smoe_link_seconds"
"""Gauge {pipeline, machine, of}: with ``smoe_transfer=adaptive``: a small message there and back (hop), one more next
to others (message), one more group spread there (spread)."""
LINK_BYTES_PER_SECOND = "smoe_link_bytes_per_second"
"""Gauge {pipeline, machine}: measured likewise."""

ARRIVAL_RATES = "smoe_arrival_tokens_per_second"
"""Histogram {pipeline, look_back}: at each request's arrival, tokens per second of the ``look_back`` seconds that end
with it, itself included, as far as this ingress gets them; of a decoder at each iteration, by the tokens computed. What
burst activation goes by, so a policy sees how high and how long bursts are."""
LOOK_BACKS_S: tuple[float, ...] = (0.25, 1.0)
"""Look-backs of ``ARRIVAL_RATES``: about as long as a standby needs to open, and as a burst that is worth one lasts."""
RATES: tuple[float, ...] = tuple(round(1.3**i, 6) for i in range(64))
"""Upper bounds of ``ARRIVAL_RATES``, 1 to 15 million tokens a second."""

PEAK_WINDOW_S = 60.0
BUCKETS_S: tuple[float, ...] = tuple(round(0.0005 * 1.3**i, 9) for i in range(45))
"""Upper bounds of all histograms of seconds, 0.5 ms to 51 s, each 1.3 times the one before."""
