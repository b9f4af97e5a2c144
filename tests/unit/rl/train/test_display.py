"""What a training run shows, and how it is stopped."""

from __future__ import annotations

import io
import os
import signal

import pytest
from rich.console import Console

from rl.train.display import EVERY_S, Display, interruptible
from rl.train.limit import Limit

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_ends_a_run_after_its_round_and_the_second_at_once(number: int) -> None:
    before, output = [signal.getsignal(one) for one in SIGNALS], io.StringIO()
    with interruptible(Console(file=output)) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.is_set() and "storing what was learnt" in output.getvalue()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_off_a_terminal_every_phase_has_a_line_a_minute_with_the_time_that_its_limit_leaves() -> None:
    output, processor, wall = io.StringIO(), [0.0], [100.0]
    limit, waits = Limit(10, clock=lambda: processor[0]), list[float]()

    def wait(seconds: float) -> bool:
        """Each minute of the wall is half a minute of the processor, in the next phase."""
        waits.append(seconds)
        limit.phase = ("choosing hours to validate on", "warm start", "validation", "")[len(waits) - 1]
        processor[0] += seconds / 2
        wall[0] += seconds
        limit.windows += 7
        return len(waits) == 4

    with Display(Console(file=output, width=200), limit, 12000, wait, lambda: wall[0]) as display:
        display._thread.join()
    assert waits == [EVERY_S] * 4
    assert output.getvalue().splitlines() == [
        "choosing hours to validate on: 7 of 12000 windows, 0.5 of 10 min, ends within 19.0 min",
        "warm start: 14 of 12000 windows, 1.0 of 10 min, ends within 18.0 min",
        "validation: 21 of 12000 windows, 1.5 of 10 min, ends within 17.0 min",
    ]


def test_a_run_that_goes_on_counts_what_its_earlier_parts_took() -> None:
    clock = iter((50.0, 80.0, 80.0, 109.9, 110.0))
    limit = Limit(2, clock=lambda: next(clock))
    limit.earlier_s = 60.0
    assert limit.spent_s == 90.0
    assert limit.over(reserved_s=30.0) and not limit.over() and limit.over()
