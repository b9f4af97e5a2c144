"""The functions' image holds every room that its program imports."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def test_every_room_that_functions_import_is_in_their_image() -> None:
    copied = set(re.findall(r"^COPY (\w+) \./\w+$", (ROOT / "deploy" / "function.Dockerfile").read_text(), re.M))
    assert "functions" in copied
    for room in copied & ROOMS:
        for module in (ROOT / room).rglob("*.py"):
            imported = set(re.findall(r"^\s*(?:from|import) (\w+)", module.read_text(), re.M)) & ROOMS
            assert imported <= copied, f"{module.relative_to(ROOT)} imports {sorted(imported - copied)}"
