"""How far Prometheus' numbers of a window may lie from those of a direct scrape of the same window.

Where nothing happens between an end of the window and the sample of Prometheus nearest to it, Prometheus has seen
all that was counted, and ``increase`` only lengthens it: by at most 1.1 mean scrape intervals at each end
(``extrapolatedRate`` in Prometheus' promql/functions.go, 2.42). So of n samples no number is too small, and none too
large by more than the share 2.2 / (n - 1).
"""

from __future__ import annotations

from autoscaler.contract import NodeObservation, Observation
from autoscaler.state.quantiles import histogram_quantile
from autoscaler.state.readings import Buckets, Readings, Series

COUNTED = ("requests_per_s", "tokens_per_s")
COUNTED_OF_NODES = (*COUNTED, "in_flight", "waiting", "busy_s", "concurrency_utilisation")
RATIOS = ("token_share", "request_share", "latency_mean_s")
"""Of two numbers that are both too large, each by a share of its own."""
SAME = ("configuration", "ready_replicas", "measured_replicas", "peak_tokens")
SMALL = 1e-9
IDLE_CPU_S = 0.05
"""Between the window's two ends and Prometheus' samples nearest to them a function without calls uses CPU as well, less
than its mean over the window (so the share of the ends at most), or this where its mean is next to nothing: health
probes, threads that wake up."""


def assert_within(direct: Observation, served: Observation, scraped: Readings, samples: float) -> None:
    """``scraped``: what ``direct`` was made of; ``samples``: how many Prometheus had of the target that has fewest."""
    share = 2.2 / (samples - 1)
    assert not direct.stale and not served.stale, (direct.problems, served.problems)
    assert (served.failed, served.in_flight) == (direct.failed, direct.in_flight) == (0, 0)
    for name in COUNTED:
        _check("pipeline", name, getattr(direct, name), getattr(served, name), 1.0, 1.0 + share)
    for q, found in ((0.5, served.latency_p50_s), (0.95, served.latency_p95_s), (0.99, served.latency_p99_s)):
        _quantile("pipeline", found, q, scraped.histogram(Series.REQUEST_SECONDS, direct.pipeline), share)
    for one, other in zip(direct.nodes, served.nodes, strict=True):
        _node(one, other, share)
        if one.kind != "ingress":
            buckets = scraped.histogram(Series.NODE_CALL_SECONDS, direct.pipeline, one.node)
            _quantile(one.node, other.latency_p95_s, 0.95, buckets, share)
    for layer, same in zip(direct.layers, served.layers, strict=True):
        where = f"layer {layer.layer}"
        _check(where, "flops_per_s", layer.flops_per_s, same.flops_per_s, 1.0, 1.0 + share)
        buckets = scraped.histogram(Series.LAYER_BARRIER_SECONDS, direct.pipeline, str(layer.layer))
        _quantile(where, same.barrier_p95_s, 0.95, buckets, share)


def _node(direct: NodeObservation, served: NodeObservation, share: float) -> None:
    where = direct.node
    for name in SAME:
        assert getattr(direct, name) == getattr(served, name), (where, name)
    for name in COUNTED_OF_NODES:
        _check(where, name, getattr(direct, name), getattr(served, name), 1.0, 1.0 + share)
    for name in RATIOS:
        _check(where, name, getattr(direct, name), getattr(served, name), 1.0 / (1.0 + share), 1.0 + share)
    _check(where, "memory_utilisation", direct.memory_utilisation, served.memory_utilisation, 0.95, 1.05)
    assert direct.cpu_s is not None and served.cpu_s is not None, where
    least, most = direct.cpu_s - max(direct.cpu_s * share, IDLE_CPU_S), direct.cpu_s * (1.0 + share)
    assert least <= served.cpu_s <= most, (where, direct.cpu_s, served.cpu_s)


def _check(where: str, name: str, direct: float | None, served: float | None, least: float, most: float) -> None:
    """Whether ``served`` is between ``least`` and ``most`` times ``direct``; both may be unknown."""
    if direct is None or served is None:
        assert served is direct, (where, name, direct, served)
        return
    assert direct * least - SMALL <= served <= direct * most + SMALL, (where, name, direct, served, most)


def _quantile(where: str, served: float | None, q: float, buckets: Buckets | None, share: float) -> None:
    """Buckets grow by factors of 1 to 1 + ``share``, each by its own, so the quantile is that of a rank nearby."""
    low, high = (histogram_quantile(rank, buckets) for rank in (q / (1.0 + share), min(1.0, q * (1.0 + share))))
    if low is None or high is None or served is None:
        assert served is low is high, (where, q, served)
        return
    assert low - SMALL <= served <= high + SMALL, (where, q, low, served, high)
