"""``docs/environment-variables.md`` against the code that reads the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environment-variables.md").read_text()
READERS = (
    "functions/serving/settings.py",
    "functions/memory/manager.py",
    "functions/app.py",
    "functions/worker.py",
    "gateway/backends/watchdog/settings.py",
    "gateway/main.py",
    "traces/catalog.py",
)
NAMES = re.compile(r"\"(smoe_[a-z_]+|SMOE_[A-Z]+|CUDA_[A-Z_]+|NATS_URL|OPENFAAS_NAMESPACE|fprocess|exec_timeout)\"")


@pytest.mark.parametrize("path", READERS)
def test_every_variable_that_is_read_has_a_row(path: str) -> None:
    read = set(NAMES.findall((ROOT / path).read_text()))
    documented = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert read <= documented
