"""A gateway's folder stays its own, whoever starts beside it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from gateway.backends.process import machines
from gateway.backends.process.machines import LockedFolder, remove_abandoned

Hook = Callable[[Callable[[], None]], None]


@pytest.fixture
def before_the_first_lock(monkeypatch: pytest.MonkeyPatch) -> Hook:
    """Runs what it is given in the moment between a new folder and its lock."""

    def hook(other_gateway: Callable[[], None]) -> None:
        def flock(file: IO[str] | int, how: int) -> None:
            monkeypatch.undo()
            other_gateway()
            fcntl.flock(file, how)

        monkeypatch.setattr(machines, "fcntl", type("Patched", (), {**vars(fcntl), "flock": staticmethod(flock)}))

    return hook


def test_a_folder_that_another_gateway_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, before_the_first_lock: Hook
) -> None:
    before_the_first_lock(lambda: remove_abandoned(tmp_path, "smoe-run-"))
    folder = LockedFolder(tmp_path, "smoe-run-")
    assert list(tmp_path.iterdir()) == [folder.folder] and (folder.folder / machines.LOCK).stat().st_mode & 0o77 == 0
    remove_abandoned(tmp_path, "smoe-run-")
    assert folder.folder.is_dir()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_lock_another_gateway_holds_at_that_moment_is_left_to_it(
    tmp_path: Path, before_the_first_lock: Hook
) -> None:
    held: list[IO[str]] = []

    def other() -> None:
        (made,) = tmp_path.iterdir()
        held.append((made / machines.LOCK).open("w"))
        fcntl.flock(held[0], fcntl.LOCK_EX)

    before_the_first_lock(other)
    folder = LockedFolder(tmp_path, "smoe-run-")
    assert len(list(tmp_path.iterdir())) == 2  # the other one removes what it holds
    folder.close()
    held[0].close()


def test_what_a_gateway_left_behind_is_removed_by_the_next_one(tmp_path: Path) -> None:
    gone = LockedFolder(tmp_path, "smoe-run-")
    gone._lock.close()  # as the kernel does when a process is killed
    folder = LockedFolder(tmp_path, "smoe-run-")
    assert list(tmp_path.iterdir()) == [folder.folder]
    folder.close()


def test_it_may_be_closed_twice_and_a_file_opened_in_between_stays_open(tmp_path: Path) -> None:
    folder = LockedFolder(tmp_path, "smoe-run-")
    folder.close()
    with (tmp_path / "other").open("w") as other:
        folder.close()
        other.write("x")
        other.flush()
    assert (tmp_path / "other").read_text() == "x"
