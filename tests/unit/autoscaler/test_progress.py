"""Which ticks count as hung, on a scripted clock."""

from __future__ import annotations

import pytest

from autoscaler.progress import Progress, stalled_after


@pytest.mark.parametrize(
    ("setting", "interval_s", "expected"), [(None, 5.0, 30.0), (None, 60.0, 180.0), (12.0, 5.0, 12.0)]
)
def test_three_intervals_are_allowed_and_at_least_30_s_unless_set(
    setting: float | None, interval_s: float, expected: float
) -> None:
    assert stalled_after(setting, interval_s) == expected


def test_only_the_end_of_a_tick_that_hung_puts_it_right() -> None:
    now_s = 0.0
    progress = Progress(30.0, lambda: now_s)
    now_s = 29.0
    progress.sign()
    now_s = 58.0
    assert progress.goes_on() and progress.trouble() == ""
    now_s = 59.0
    progress.sign()
    assert not progress.goes_on()
    assert progress.trouble() == "the tick has stood still for 30 s; 30 s are allowed"
    progress.turn()
    assert progress.goes_on() and progress.trouble() == ""
