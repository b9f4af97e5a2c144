"""Counters and histograms of the ingress, cheap enough for a hundred observations a request.

Prometheus' own client takes a lock and walks all buckets for every observation; here an observation is one bisect
and two additions on one event loop, and the text is made when scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.dispatch.activations import ActivationWindow, entropy_bits
from functions.dispatch.dispatcher import CallRecord
from functions.dispatch.levels import Arrivals
from functions.serving import metric_names as names
from functions.serving.traffic import Traffic


@dataclass(slots=True)
class Distribution:
    """A histogram; the last count is of values above all ``bounds``."""

    bounds: tuple[float, ...] = names.BUCKETS_S
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, failed: bool = False) -> None:
        """``failed``: counted as above all bounds."""
        self.counts[-1 if failed else bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: (upper bound, count of values up to it)."""
        result, running = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            result.append((repr(bound), float(running)))
        result.append(("+Inf", float(running + self.counts[-1])))
        return result


class PeakGauge:
    """The largest value of a quantity over the last ``window_s`` seconds, kept second by second."""

    __slots__ = ("_current", "_highest", "_past", "_second", "_window_s")

    def __init__(self, window_s: float = names.PEAK_WINDOW_S) -> None:
        self._window_s = window_s
        self._current = 0
        self._second = 0
        self._highest = 0
        """Largest value in the present second."""
        self._past: deque[tuple[int, int]] = deque()
        """(second, largest value in it) of seconds in which something changed."""

    def change(self, amount: int, now_s: float) -> None:
        """Add ``amount`` (may be negative) to the quantity."""
        if int(now_s) != self._second:
            self._roll(now_s)
        self._current += amount
        if self._current > self._highest:
            self._highest = self._current

    def peak(self, now_s: float) -> int:
        """Over the window, its oldest second counted whole."""
        self._roll(now_s)
        return max([self._highest, *(value for _, value in self._past)])

    def _roll(self, now_s: float) -> None:
        second = int(now_s)
        if second != self._second:
            self._past.append((self._second, self._highest))
            if self._current and second > self._second + 1:  # it stayed this high until now
                self._past.append((second - 1, self._current))
            self._second, self._highest = second, self._current
        while self._past and self._past[0][0] < second - self._window_s:
            self._past.popleft()


@dataclass(slots=True)
class NodeInstruments:
    """All that is counted about one node."""

    call_seconds: Distribution = field(default_factory=Distribution)
    calls: dict[str, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    wait_s: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0
    in_flight: int = 0
    peak: PeakGauge = field(default_factory=PeakGauge)

    def begin(self, tokens: int, now_s: float) -> None:
        self.in_flight += 1
        self.tokens += tokens
        self.peak.change(tokens, now_s)

    def end(self, tokens: int, begun_s: float, now_s: float, record: CallRecord) -> None:
        self.in_flight -= 1
        self.peak.change(-tokens, now_s)
        self.call_seconds.observe(now_s - begun_s)
        self.wait_s += record.wait_s
        self.busy_s += record.busy_s
        self.calls[record.status] = self.calls.get(record.status, 0) + 1
        for reason in record.repeats:
            self.retries[reason] = self.retries.get(reason, 0) + 1


class IngressInstruments:
    """Everything the ingress exposes, as a Prometheus collector. Used from one event loop only."""

    def __init__(
        self,
        pipeline: str,
        node_ids: list[str],
        layers: int,
        clock: Callable[[], float],
        *,
        own_node: str = "",
        window_s: float = 300.0,
    ) -> None:
        """``own_node``: the ingress's machine; ``window_s``: of the statistics of routing."""
        self.pipeline = pipeline
        experts = [sum(node_id.startswith(f"expert-{layer}-") for node_id in node_ids) for layer in range(layers)]
        self.activations = ActivationWindow(experts, window_s)
        self.traffic = Traffic(layers, own_node)
        self.nodes = {node_id: NodeInstruments() for node_id in node_ids}
        self.barriers = [Distribution() for _ in range(layers)]
        self.request_seconds = Distribution()
        self._arrivals = [(Arrivals(look_back_s), Distribution(names.RATES)) for look_back_s in names.LOOK_BACKS_S]
        self.requests: dict[str, int] = {"200": 0}
        self.in_flight = 0
        self.tokens = 0
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Prometheus text format."""
        return bytes(generate_latest(self._registry))

    def expose(self, collector: Collector) -> None:
        """Have ``text`` hold another collector's metrics too."""
        self._registry.register(collector)

    def arrived(self, tokens: int) -> None:
        """A request of so many tokens is about to be served, or an iteration of texts under way was."""
        now_s = self._clock()
        for arrivals, distribution in self._arrivals:
            distribution.observe(arrivals.rate(now_s, tokens))

    def finished(self, status: int, seconds: float, tokens: int) -> None:
        """One request was answered."""
        code = str(status)
        self.requests[code] = self.requests.get(code, 0) + 1
        self.request_seconds.observe(seconds, failed=status >= 500 or status == 429)
        if status == 200:
            self.tokens += tokens

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield from self._request_families()
        yield from self._node_families()
        barrier = HistogramMetricFamily(
            names.LAYER_BARRIER_SECONDS, "Scatter to last gather", labels=["pipeline", "layer"]
        )
        for layer, distribution in enumerate(self.barriers):
            barrier.add_metric([self.pipeline, str(layer)], distribution.cumulative(), distribution.total)
        yield barrier
        entropy = GaugeMetricFamily(names.ENTROPY, "Entropy of the experts' tokens", labels=["pipeline", "layer"])
        for layer, bits in enumerate(entropy_bits(self.activations.totals(self._clock())[0])):
            entropy.add_metric([self.pipeline, str(layer)], bits)
        yield entropy
        yield from self.traffic.families(self.pipeline)

    def _request_families(self) -> Iterator[Metric]:
        labels = [self.pipeline]
        requests = CounterMetricFamily(names.REQUESTS, "Requests answered", labels=["pipeline", "code"])
        for code, count in self.requests.items():
            requests.add_metric([*labels, code], count)
        meaning = "Time to answer; failed requests (5xx, 429) count as slower than every bucket"
        seconds = HistogramMetricFamily(names.REQUEST_SECONDS, meaning, labels=["pipeline"])
        seconds.add_metric(labels, self.request_seconds.cumulative(), self.request_seconds.total)
        in_flight = GaugeMetricFamily(names.REQUESTS_IN_FLIGHT, "Requests in flight", labels=["pipeline"])
        in_flight.add_metric(labels, self.in_flight)
        tokens = CounterMetricFamily(names.REQUEST_TOKENS, "Tokens of answered requests", labels=["pipeline"])
        tokens.add_metric(labels, self.tokens)
        rates = HistogramMetricFamily(
            names.ARRIVAL_RATES, "Tokens per second at each arrival", labels=["pipeline", "look_back"]
        )
        for look_back_s, (_, distribution) in zip(names.LOOK_BACKS_S, self._arrivals, strict=True):
            rates.add_metric([*labels, f"{look_back_s:g}"], distribution.cumulative(), distribution.total)
        yield from (requests, seconds, in_flight, tokens, rates)

    def _node_families(self) -> Iterator[Metric]:
        label = ["pipeline", "node"]
        calls = CounterMetricFamily(names.NODE_CALLS, "Calls finished", labels=[*label, "code"])
        retries = CounterMetricFamily(names.NODE_RETRIES, "Calls repeated", labels=[*label, "reason"])
        seconds = HistogramMetricFamily(
            names.NODE_CALL_SECONDS, "Request to reply, waiting for a free slot included", labels=label
        )
        wait = CounterMetricFamily(names.NODE_WAIT_SECONDS, "Waiting for a slot", labels=label)
        busy = CounterMetricFamily(names.NODE_BUSY_SECONDS, "At replicas", labels=label)
        tokens = CounterMetricFamily(names.NODE_TOKENS, "Tokens sent", labels=label)
        in_flight = GaugeMetricFamily(names.NODE_IN_FLIGHT, "Calls in flight", labels=label)
        peak = GaugeMetricFamily(names.NODE_TOKENS_PEAK, "Most tokens in flight in 60 s", labels=label)
        now_s = self._clock()
        for node_id, node in self.nodes.items():
            labels = [self.pipeline, node_id]
            for code, count in node.calls.items():
                calls.add_metric([*labels, code], count)
            for reason, count in node.retries.items():
                retries.add_metric([*labels, reason], count)
            seconds.add_metric(labels, node.call_seconds.cumulative(), node.call_seconds.total)
            wait.add_metric(labels, node.wait_s)
            busy.add_metric(labels, node.busy_s)
            tokens.add_metric(labels, node.tokens)
            in_flight.add_metric(labels, node.in_flight)
            peak.add_metric(labels, node.peak.peak(now_s))
        yield from (calls, retries, seconds, wait, busy, tokens, in_flight, peak)
