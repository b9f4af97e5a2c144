"""README's commands, step by step, as they stand there; the replay is cut to twenty seconds."""

from __future__ import annotations

import json
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
SHORT_S = 20
"""Seconds of the replay here; a slow machine takes longer to answer, and is waited for."""
WAIT_S, MOST_TICKS = 120.0, 50
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def steps() -> dict[str, list[str]]:
    """Subcommand → its words, of the block below "Step by step"."""
    block = README.read_text().partition("\nStep by step")[2].split("```")[1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("smoe ")]
    return {words[1]: words[1:] for words in commands}


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "smoe", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def ticks_of(controller: subprocess.Popen[str]) -> queue.Queue[dict[str, Any]]:
    """Its lines as they come."""
    ticks: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in controller.stdout or ():
            ticks.put(json.loads(line))

    threading.Thread(target=read, daemon=True).start()
    return ticks


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """README's, while what its first one started runs; ports are free ones."""
    shown = steps()
    run([*shown["up"], "--port", "0", "--metrics-port", "0"], tmp_path)
    yield shown
    run(shown["down"], tmp_path)


def test_the_steps_scale_an_expert_and_refuse_nothing(commands: dict[str, list[str]], tmp_path: Path) -> None:
    for name in ("invoke", "logs", "status"):
        assert run(commands[name], tmp_path)
    replay = commands["replay"]
    short = str(SHORT_S * float(replay[replay.index("--speed") + 1]))
    autoscale = [sys.executable, "-m", "smoe", *commands["autoscale"], "--json"]
    with subprocess.Popen(autoscale, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as controller:
        try:
            ticks = ticks_of(controller)
            ticks.get(timeout=WAIT_S)  # it looks
            (tmp_path / "no-traces").mkdir()
            run([*replay, "--duration-s", short, "--data", "no-traces", "--timeout-s", "300"], tmp_path)
            assert any(scaled(ticks.get(timeout=WAIT_S)) for _ in range(MOST_TICKS))
        finally:
            controller.terminate()
    summary = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert summary["failed"] == 0 and summary["ok"] > SHORT_S


def scaled(tick: dict[str, Any]) -> list[str]:
    """Experts that a tick has changed."""
    return [one["function"] for one in tick["changes"] if one["applied"] and "-expert-" in one["function"]]
