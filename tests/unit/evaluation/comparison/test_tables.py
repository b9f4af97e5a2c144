"""How the rows of an evaluation are written, and the sentence that opens its report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation.comparison.intervals import Interval
from evaluation.comparison.report import verdict
from evaluation.comparison.tables import HEAD, Row, cells

COST, PART, SHARE = Interval(15.234, 14.0, 16.0), Interval(0.123, 0.1, 0.2), Interval(0.05, 0.01, 0.2)
ROW = Row("hpa", "bursty", 3, {"provisioned": COST}, COST, {"provisioned": PART, "busy": None}, SHARE, PART, PART, 1, 0)


@pytest.mark.parametrize(
    ("runs", "currency", "cost", "part"),
    [(3, "USD", "$15.2 ($14.0–$16.0)", "12.3 % (10.0–20.0)"), (1, "EUR", "EUR 15.2", "12.3 %")],
)
def test_means_of_one_run_have_no_interval_and_shares_of_its_windows_do(
    runs: int, currency: str, cost: str, part: str
) -> None:
    row = dict(zip(HEAD, cells(replace(ROW, runs=runs, currency=currency)), strict=True))
    assert (row["provisioned"], row["standbys"], row["busy"]) == (cost, cost, "–")
    assert {row[name] for name in ("provisioned over bound", "P95 / SLO", "mean excess")} == {part}
    assert row["windows over SLO"] == "5.0 % (1.0–20.0)"


def test_the_verdict_names_the_cheapest_that_keep_the_slo_under_each_pattern() -> None:
    cheap = replace(ROW, policy="static", cost={"provisioned": Interval(9.0, 9.0, 9.0)})
    # One hour in four is over: the mean P95 of the middle ones hides it.
    over = replace(cheap, policy="kpa", p95=Interval(0.9, 0.9, 5.0), violations=Interval(0.06, 0.02, 0.2))
    calm = [replace(over, pattern="normal"), replace(ROW, pattern="normal", violations=None)]
    sentence = verdict([ROW, over, cheap, replace(cheap, policy="keda"), *calm])
    assert "keda" not in verdict([ROW, replace(cheap, policy="keda")], {"keda"})
    assert sentence.endswith("5% of the windows: static, keda at $9.00 provisioned (bursty); none (normal).")
