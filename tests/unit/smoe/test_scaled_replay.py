"""A replay next to a controller, both faked: who ends when."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from smoe import scaled_replay
from traces.model import Trace


class Replayed(scaled_replay.ScaledReplay):
    async def _replay(self, *_: Any) -> Any:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, str)  # closing the loop takes it away
        return "what was replayed"


def test_the_last_window_is_over_before_the_replay_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "basic-auth-password").write_text("secret")
    returned, ended = Event(), []

    def windows(_: Any, __: float, stopped: Callable[[], bool], *___: Any, window_s: float) -> None:
        stopped()
        ended.append("late" if returned.wait(0.1) else "in time")

    controller = SimpleNamespace(prices=SimpleNamespace(currency="$"))
    monkeypatch.setattr(scaled_replay, "build_controller", lambda _: (controller, 5.0))
    monkeypatch.setattr(scaled_replay, "run_controller", windows)
    monkeypatch.setattr(scaled_replay, "BEFORE_S", 0.0)
    trace = Trace(arrival_s=np.array([0.0]), duration_s=1.0, source="one", sha256="")
    one = Replayed("minilm", tmp_path, tmp_path, tmp_path, trace, ["a"], 0.3, "static", {}, 5.0, 4, 7)
    client: Any = SimpleNamespace(url="http://127.0.0.1:1")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result: Any = one.run(client, Console(file=StringIO()))
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler, "what comes next can be stopped, too"
    finally:
        signal.signal(signal.SIGTERM, before)
    returned.set()
    assert result == "what was replayed" and ended == ["in time"]
