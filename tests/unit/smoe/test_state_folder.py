"""Who makes a state folder closes it."""

from __future__ import annotations

from pathlib import Path

from gateway.client.state import private_folder


def test_a_folder_and_those_above_it_that_were_missing_are_its_user_s_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "state" / "pipelines")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "state" / "pipelines", tmp_path / "state", tmp_path)]
    assert modes == [0o700, 0o700, 0o755]
