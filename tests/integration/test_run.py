"""``smoe run`` as a newcomer sees it: experts are scaled, by themselves and for a reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_main_job_scales_experts_one_by_one_and_says_why(tmp_path: Path) -> None:
    out, environment = tmp_path / "out", {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "smoe", "run", "--state", str(tmp_path / "state"), "--out", str(out)]
    command += ["--seconds", "25", "--no-baseline"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    numbers = json.loads((out / "report.json").read_text())
    assert numbers["replicas"]["experts_scaled"] >= 2
    assert numbers["replicas"]["different_at_once"] >= 2
    assert any("asks for" in reason for reason in numbers["actions"]["by_reason"])
    assert numbers["replicas"]["least"] == 32, "a run begins with what is deployed, a replica of each function"
    assert "experts were scaled" in ended.stdout
    windows = re.findall(r"^t=\d+s .*expert_replicas=(\d+)", ended.stdout, re.MULTILINE)
    assert windows and windows[0] == "24", "each window has a line, with the replicas of then"
