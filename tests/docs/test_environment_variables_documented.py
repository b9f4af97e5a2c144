"""``docs/environment-variables.md`` against the code that reads the environment."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gateway.main import main as gateway

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


PACKAGES = ("autoscaler", "functions", "gateway", "moe", "placement", "platform_words", "smoe", "traces", "deploy")
BINARY = (".safetensors", ".gz")
DEFAULTS = re.compile(
    r"_whole\(environ, \"(\w+)\", (\d+)\)|environ\.get\(\"(\w+)\", \"([^\"]+)\"\)"
    r"|int\(environ\.get\(\"(\w+)\", \"?(\w+)"
)


def rows() -> dict[str, str]:
    """Variable → the cell of its default."""
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in PAGE.splitlines() if line.startswith("| `")]
    return {name: row[1] for row in cells for name in re.findall(r"`(\w+)`", row[0])}


def test_every_variable_of_an_option_of_the_gateway_has_its_default_on_the_page() -> None:
    read = {str(one.envvar): one.default for one in gateway.params if isinstance(one, click.Option) and one.envvar}
    assert {"basic_auth", "upstream_timeout", "startup_cpu_boost", "NATS_URL"} <= read.keys()
    shown = {
        name: f"`{str(default).lower()}`" if isinstance(default, str | bool | float) else "none"
        for name, default in read.items()
    }
    documented = rows()
    assert {name: documented.get(name) for name in read} == shown


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    documented, seen = rows(), {}
    for path in READERS:
        for found in DEFAULTS.findall((ROOT / path).read_text()):
            name, default = [part for part in found if part]
            if name in documented:
                seen[name] = default
    assert len(seen) >= 10
    assert {name: documented[name] for name in seen} == {
        name: documented[name] if f"`{default}`" in documented[name] else f"`{default}`"
        for name, default in seen.items()
    }


def test_every_row_is_of_a_variable_that_something_reads() -> None:
    files = [path for room in PACKAGES for path in (ROOT / room).rglob("*") if path.is_file()]
    files += [ROOT / "Makefile", ROOT / "tests" / "conftest.py"]
    files += [path for room in ("cluster", "integration") for path in (ROOT / "tests" / room).rglob("*.py")]
    sources = (path for path in files if path.suffix not in BINARY and "__pycache__" not in path.parts)
    read = {name for path in sources for name in re.findall(r"\w+", path.read_text(errors="ignore"))}
    assert [name for name in rows() if name not in read] == []
