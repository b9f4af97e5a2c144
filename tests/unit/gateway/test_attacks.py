"""``python -m benchmarks.attacks``: its short form, and that it reports a door that is open."""

from __future__ import annotations

import pytest

from benchmarks.attacks import doors
from benchmarks.attacks.__main__ import attack
from benchmarks.attacks.target import running_target

pytestmark = pytest.mark.slow


def test_every_attack_that_can_be_tried_is_held() -> None:
    rows = attack(thorough=False)
    assert [row for row in rows if row[1] is False] == []
    assert sum(row[1] is True for row in rows) >= 14


def test_an_attack_reports_a_door_that_is_open() -> None:
    with running_target("--no-caller-keys", "--no-basic-auth", "--no-command-users") as target:
        open_doors = (doors.worker_called_by_itself, doors.control_without_password, doors.forged_session)
        assert [held for held, _ in (one(target) for one in open_doors)] == [False] * len(open_doors)
        outcome = doors.command_reads_the_password(target)
        assert outcome is None or not outcome[0]
