"""Histogram quantiles: Prometheus's interpolation by hand, numpy as an independent oracle, and what has no answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.state.quantiles import histogram_quantile
from autoscaler.state.readings import Buckets

INF = math.inf
# 10 observations up to 0.1 s, 30 more up to 0.2 s, 10 above.
BUCKETS: Buckets = ((0.1, 10), (0.2, 40), (INF, 50))


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        pytest.param(0.1, 0.05, id="half of the lowest bucket, which begins at zero"),
        pytest.param(0.2, 0.1, id="on a bound"),
        pytest.param(0.5, 0.15, id="rank 25: half of the second bucket"),
        pytest.param(0.95, 0.2, id="in the infinite bucket: the highest finite bound"),
    ],
)
def test_interpolates_as_prometheus_does(q: float, expected: float) -> None:
    assert histogram_quantile(q, BUCKETS) == pytest.approx(expected)


@pytest.mark.parametrize(
    "buckets",
    [None, (), ((INF, 5),), ((0.1, 0), (INF, 0)), ((0.1, 1), (0.2, 2))],
    ids=["none", "empty", "only infinite", "no observation", "no infinite bucket"],
)
def test_without_observations_there_is_no_quantile(buckets: Buckets | None) -> None:
    assert histogram_quantile(0.5, buckets) is None


def test_counts_that_fall_are_made_monotone() -> None:
    fallen: Buckets = ((0.1, 10), (0.2, 9.99), (0.4, 20), (INF, 20))
    assert histogram_quantile(0.75, fallen) == pytest.approx(0.3)


@given(
    st.lists(st.floats(0.001, 0.999), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_dense_buckets_give_numpy_s_quantile_to_a_bucket_s_width(values: list[float], q: float) -> None:
    width = 0.001
    bounds = [width * i for i in range(1, 1001)]
    counts = np.searchsorted(np.sort(values), bounds, side="right")
    buckets: Buckets = (*zip(bounds, map(float, counts), strict=True), (INF, float(len(values))))
    quantile = histogram_quantile(q, buckets)
    oracle = float(np.quantile(values, q, method="inverted_cdf"))
    assert quantile is not None and abs(quantile - oracle) <= width + 1e-9


@given(st.lists(st.floats(0, 100), min_size=3, max_size=20), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_larger_share_never_has_a_smaller_quantile(growth: list[float], one: float, other: float) -> None:
    counts = np.cumsum(growth)
    bounds = [0.1 * (i + 1) for i in range(len(growth) - 1)]
    buckets: Buckets = (*zip(bounds, map(float, counts[:-1]), strict=True), (INF, float(counts[-1])))
    low, high = (histogram_quantile(q, buckets) for q in sorted((one, other)))
    assert (low is None and high is None) or (low is not None and high is not None and low <= high + 1e-12)
