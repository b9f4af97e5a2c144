"""The images hold every room that their programs import, and write to /tmp only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def test_every_room_that_functions_import_is_in_their_image() -> None:
    copied = set(re.findall(r"^COPY (\w+) \./\w+$", (ROOT / "deploy" / "function.Dockerfile").read_text(), re.M))
    assert "functions" in copied
    for room in copied & ROOMS:
        for module in (ROOT / room).rglob("*.py"):
            imported = set(re.findall(r"^\s*(?:from|import) (\w+)", module.read_text(), re.M)) & ROOMS
            assert imported <= copied, f"{module.relative_to(ROOT)} imports {sorted(imported - copied)}"


@pytest.mark.parametrize("name", ["function", "control"])
def test_numba_keeps_what_it_compiled_where_a_read_only_container_may_write(name: str) -> None:
    """Without a folder to write to, an import of a function with ``cache=True`` raises RuntimeError."""
    assert "ENV NUMBA_CACHE_DIR=/tmp/" in (ROOT / "deploy" / f"{name}.Dockerfile").read_text()


def test_libraries_keep_their_files_where_a_function_may_write() -> None:
    assert re.search(r"^    HOME=/tmp ", (ROOT / "deploy" / "function.Dockerfile").read_text(), re.M)


@pytest.mark.parametrize("name", ["function", "control"])
def test_an_image_lists_its_packages_before_pip_goes(name: str) -> None:
    steps = (ROOT / "deploy" / f"{name}.Dockerfile").read_text()
    assert "-o /opt/venv/sbom.json" in steps and "useradd" in steps and "\nUSER 12000\n" in steps
