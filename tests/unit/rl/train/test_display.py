"""How a training run is stopped."""

from __future__ import annotations

import io
import os
import signal

import pytest
from rich.console import Console

from rl.train.display import interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_ends_a_run_after_its_round_and_the_second_at_once(number: int) -> None:
    before, output = [signal.getsignal(one) for one in SIGNALS], io.StringIO()
    with interruptible(Console(file=output)) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.is_set() and "the actor is stored" in output.getvalue()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert [signal.getsignal(one) for one in SIGNALS] == before
