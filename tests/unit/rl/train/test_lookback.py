"""What the past tells of the coming window: look backs and constant choices on needs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lookback import WARM_UP, Hour, Needs, Row, cheapest, compared
from evaluation.comparison.policies import limits_of
from evaluation.uniform import by_price
from rl.train.hindsight import CONCURRENCY, REPLICAS, needed
from simulation.engine.requests import draw_requests
from simulation.workloads.paper import paper_workload

HOUR = Hour("bert-4", "bursty", 0, 20.0, quick=False)
NAMES = ("1 cores", "0.1 GPU", "0.2 GPU")


def needs(level: list[int]) -> Needs:
    return Needs(HOUR, np.array([0] * WARM_UP + level), np.array([1.0, 2.0, 4.0]), NAMES)


def test_looking_back_pays_for_a_burst_when_it_is_over() -> None:
    rows = {row.policy: row for row in compared([needs([0, 0, 2, 0, 0, 0])])}
    assert (rows["known"].cost, rows["known"].violated) == (1.0, 0.0)
    assert rows["look back 1"].cost == 1.0 and rows["look back 1"].violated == pytest.approx(1 / 6, abs=1e-4)
    assert rows["look back 2"].cost == pytest.approx((1 + 1 + 1 + 4 + 4 + 1) / 9, abs=1e-3)
    assert rows["always 0.1 GPU"].cost == pytest.approx(12 / 9, abs=1e-3)
    assert rows["always 0.1 GPU"].violated == pytest.approx(1 / 6, abs=1e-4)
    assert rows["always 0.2 GPU"].violated == 0.0


def test_a_window_that_nothing_serves_is_over_under_every_policy() -> None:
    rows = compared([needs([3, 3, 3])])
    assert {row.violated for row in rows} == {1.0}


def test_the_cheapest_that_is_within_what_is_allowed_is_named() -> None:
    rows = [
        Row(20.0, "slow", f"look back {n}", cost, over)
        for n, cost, over in ((1, 1.0, 0.05), (4, 2.0, 0.01), (8, 3.0, 0.0))
    ]
    assert cheapest(rows, "look back", 0.01) == rows[1]
    assert cheapest(rows, "always", 1.0) is None


@pytest.mark.parametrize("count", [0, 40, 400])
def test_what_is_needed_is_the_first_choice_that_keeps_the_slo(count: int) -> None:
    workload = paper_workload("bert-4")
    choices = by_price(limits_of(workload).space, workload.prices, CONCURRENCY, REPLICAS)
    requests = draw_requests(workload, np.linspace(0.0, 5.0, count), seed=1, source="made")
    asked = [needed(workload, requests, choices[:place], workload.slo_s, 6.0, 1) for place in (len(choices), 3, 1)]
    least = asked[0]
    assert asked == [least, min(least, 3), min(least, 1)]
    assert (least == 0) == (count == 0)
