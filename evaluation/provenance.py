"""Which code a result hangs on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOMS = ("rl", "evaluation", "simulation", "autoscaler", "traces")
"""Whose code a training run or a simulated run hangs on."""


@cache
def code_sha256() -> str:
    """Of the Python files of the rooms that training and evaluation run through, with their paths; as they are when it
    is first asked for."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
