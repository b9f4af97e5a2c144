"""The front of rules, and the best of each pattern, by hand."""

from __future__ import annotations

from benchmarks.staffing_rules import cheapest_by_kind, front_of, summed
from rl.staffing.training import Judged


def hour(pattern: str, cost: float, violated: int) -> Judged:
    return Judged(pattern, 20.0, cost, 10, violated)


def test_only_what_no_other_undercuts_in_both_is_on_the_front() -> None:
    assert front_of([(2.0, 0.1), (1.0, 0.2), (3.0, 0.1), (1.5, 0.2), (4.0, 0.0)]) == [1, 0, 4]


def test_windows_over_are_shares_of_all_windows() -> None:
    assert summed([hour("bursty", 1.0, 1), hour("slow", 3.0, 2)]) == (2.0, 0.15)


def test_each_pattern_has_the_cheapest_rule_within_what_is_tolerated_or_the_one_that_breaks_least() -> None:
    lean = [hour("slow", 1.0, 0), hour("bursty", 1.0, 9)]
    ample = [hour("slow", 2.0, 0), hour("bursty", 3.0, 4)]
    assert cheapest_by_kind([lean, ample], 0.03) == (2.0, 0.2)
    assert cheapest_by_kind([lean, ample], 0.9) == (1.0, 0.45)
