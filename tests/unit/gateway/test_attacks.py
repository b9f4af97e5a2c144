"""``python -m tests.attacks``: its short form, and that it reports a door that is open."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.harness.running import RunningPipeline
from tests.attacks import doors
from tests.attacks.__main__ import attack
from tests.attacks.containers import calls_after_sigterm_behind_a_watchdog
from tests.attacks.idle import is_open
from tests.attacks.target import running_target

pytestmark = pytest.mark.slow


def test_every_attack_that_can_be_tried_is_held(minilm_pipeline: Path) -> None:
    rows = attack(thorough=False, preset=str(minilm_pipeline))
    assert [row for row in rows if row[1] is False] == []
    assert sum(row[1] is True for row in rows) >= 18


def test_an_attack_reports_a_door_that_is_open() -> None:
    with running_target("--no-caller-keys", "--no-basic-auth", "--no-command-users") as target:
        open_doors = (doors.worker_called_by_itself, doors.control_without_password, doors.forged_session)
        assert [held for held, _ in (one(target) for one in open_doors)] == [False] * len(open_doors)
        outcome = doors.command_reads_the_password(target)
        assert outcome is None or not outcome[0]


def test_containers_that_leave_at_once_after_sigterm_are_reported(
    minilm_pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("smoe_quiet", "0s")
    pipeline = cast(RunningPipeline, SimpleNamespace(directory=minilm_pipeline))
    assert not calls_after_sigterm_behind_a_watchdog(pipeline, thorough=False)[0]


def test_a_connection_is_open_until_the_other_side_closes_it() -> None:
    here, there = socket.socketpair()
    here.setblocking(False)
    there.sendall(b"a late answer")
    assert is_open(here)
    there.close()
    assert not is_open(here)
    here.close()
