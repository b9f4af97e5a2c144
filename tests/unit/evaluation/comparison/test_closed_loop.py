"""What the closed loop's benchmark concludes from its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from benchmarks.closed_loop.__main__ import Outcome, Run, first_on_cost, refuse_slack, turns
from traces.model import make_trace

OUTCOME = Outcome(10.0, 30.0, 0.9, 0.0, 2.0, 1.0, 100, 0, 5)


def cell(policy: str, over: float, cost: float) -> dict[str, Any]:
    return {"policy": policy, "measured": {"p95_over_slo": over, "provisioned": cost}}


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        ([cell("smoe", 0.9, 2.0), cell("hpa", 0.9, 3.0)], True),
        ([cell("smoe", 0.9, 2.0), cell("hpa", 0.9, 1.0)], False),
        ([cell("smoe", 0.9, 2.0), cell("hpa", 1.1, 1.0)], True),
        ([cell("smoe", 1.1, 1.0), cell("hpa", 0.9, 3.0)], False),
        ([cell("smoe", 1.1, 2.0), cell("smoe", 0.9, 2.0), cell("smoe", 0.9, 9.0)], True),
    ],
    ids=["cheapest", "dearer", "cheapest of those within", "over the target", "median of its repeats"],
)
def test_the_learnt_policy_is_first_where_none_within_the_target_is_cheaper(
    cells: list[dict[str, Any]], first: bool
) -> None:
    assert first_on_cost(cells) is first


def test_each_policy_begins_a_repeat_in_its_turn() -> None:
    orders = [turns(("a", "b", "c"), repeat) for repeat in range(4)]
    assert orders == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]


def test_a_target_that_the_cheapest_configurations_keep_is_refused() -> None:
    run = Run(make_trace([0.0], duration_s=1.0, source="one"), ("a",), 0.25, 2.0, 0.03, Path("profile"), 0)
    refuse_slack(replace(OUTCOME, p95_over_slo=1.01), run)
    with pytest.raises(click.ClickException, match=r"250 ms does not bind.*0\.90 of it"):
        refuse_slack(OUTCOME, run)
