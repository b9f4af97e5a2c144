"""Who makes a state folder closes it; who ends its gateway reports how."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.client.client import GatewayClient
from gateway.client.errors import StateError
from gateway.client.state import private_folder
from platform_words.labels import PIPELINE_LABEL
from smoe import lifecycle
from smoe.commands.service import down
from smoe.commands.status import status
from smoe.commands.top import top


def test_a_folder_and_those_above_it_that_were_missing_are_its_user_s_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "state" / "pipelines")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "state" / "pipelines", tmp_path / "state", tmp_path)]
    assert modes == [0o700, 0o700, 0o755]


def test_a_gateway_that_has_to_be_killed_is_not_reported_as_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    program = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, "gateway"], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        (tmp_path / "gateway.json").write_text(json.dumps({"pid": stubborn.pid}))
        stop = lifecycle.stop_gateway
        monkeypatch.setattr(lifecycle, "stop_gateway", lambda state: stop(state, timeout_s=0.0))
        ended = CliRunner().invoke(down, ["--state", str(tmp_path)])
    assert (ended.exit_code, "was killed" in ended.output) == (1, True)


@pytest.mark.slow
def test_down_waits_until_the_process_has_gone_and_not_only_its_file(tmp_path: Path) -> None:
    """A gateway takes its file away before its ports are free."""
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    pathlib.Path(sys.argv[2]).unlink(); time.sleep(1); sys.exit()\n"
        "signal.signal(15, end); print(1, flush=True); time.sleep(600)"
    )
    file = tmp_path / "gateway.json"
    with subprocess.Popen([sys.executable, "-c", program, "gateway", file], stdout=subprocess.PIPE) as slow:
        assert slow.stdout is not None
        slow.stdout.readline()
        file.write_text(json.dumps({"pid": slow.pid}))
        assert lifecycle.stop_gateway(tmp_path, timeout_s=20.0) == (slow.pid, True)
        assert slow.poll() == 0


def test_commands_on_a_folder_without_a_gateway_say_how_to_start_one(tmp_path: Path) -> None:
    for command in (status, top):
        outcome = CliRunner().invoke(command, ["--state", str(tmp_path)])
        assert isinstance(outcome.exception, StateError) and "start one with `smoe up`" in str(outcome.exception)


def test_pipelines_that_came_back_with_the_state_folder_are_named_once_each(monkeypatch: Any) -> None:
    deployed = [{"name": f"{owner}-{part}", "labels": {PIPELINE_LABEL: owner}} for owner in "cba" for part in range(2)]
    client = GatewayClient("http://127.0.0.1:1")
    monkeypatch.setattr(client, "functions", lambda: [*deployed, {"name": "of-nobody"}])
    assert lifecycle.other_pipelines(client, "b") == ["a", "c"]
