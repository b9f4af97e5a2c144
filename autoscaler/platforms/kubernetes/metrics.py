"""What the controller exposes of itself on a cluster; names in ``docs/metrics.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from autoscaler.platforms.kubernetes.conditions import Condition

CONDITIONS = "smoe_controller_conditions"
"""Gauge {pipeline, function, condition}: what stands in the way of a function."""
REFUSALS = "smoe_controller_refusals_total"
"""Counter {pipeline, function, condition}: orders refused or taken back, and so held back; each counted once."""
CALLS = "smoe_controller_api_calls_total"
"""Counter {pipeline, verb, resource, code}: answers of the API server; code 0: none."""
LEADER = "smoe_controller_leader"
"""Gauge {pipeline}: 1 where this controller acts, 0 where it stands by."""


class PlatformMetrics:
    """A collector: asked at every scrape."""

    def __init__(
        self,
        pipeline: str,
        conditions: Callable[[], tuple[Condition, ...]],
        calls: Mapping[tuple[str, str, int], int],
        leads: Callable[[], bool],
        refusals: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        """``pipeline``: the value of that label, since controllers of several pipelines stand side by side.
        ``refusals``: (function, condition) → how often that was newly met."""
        self._pipeline = pipeline
        self._conditions = conditions
        self._calls = calls
        self._leads = leads
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        counts = Counter((condition.function, condition.kind) for condition in self._conditions())
        labels = ["pipeline", "function", "condition"]
        gauge = GaugeMetricFamily(CONDITIONS, "What stands in the way of a function", labels=labels)
        for (function, kind), count in sorted(counts.items()):
            gauge.add_metric([self._pipeline, function, kind], count)
        refused = CounterMetricFamily(
            REFUSALS, "Orders that were refused, or taken back, and are held back", labels=labels
        )
        for of, number in sorted(dict(self._refusals).items()):
            refused.add_metric([self._pipeline, *of], number)
        asked = ["pipeline", "verb", "resource", "code"]
        counter = CounterMetricFamily(CALLS, "Answers of the API server", labels=asked)
        for (verb, resource, code), number in sorted(dict(self._calls).items()):
            counter.add_metric([self._pipeline, verb, resource, str(code)], number)
        leader = GaugeMetricFamily(LEADER, "1 where this controller acts, 0 where it stands by", labels=["pipeline"])
        leader.add_metric([self._pipeline], int(self._leads()))
        yield from (gauge, refused, counter, leader)
