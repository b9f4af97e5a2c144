"""Stored results for the notebooks beside this file: where they are, how they are read, and sentences made of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.display import Markdown as Untyped

Markdown: Any = Untyped
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"


def table(*parts: str) -> list[dict[str, Any]]:
    """Rows of a CSV file under ``docs/results``: numbers as numbers, empty cells as None, True and False as such."""
    with RESULTS.joinpath(*parts).open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def document(*parts: str) -> Any:
    """A JSON file under ``docs/results``."""
    return json.loads(RESULTS.joinpath(*parts).read_text())


def there(*parts: str) -> bool:
    """Whether a stored result is there at all."""
    return RESULTS.joinpath(*parts).is_file()


def say(*sentences: str) -> Any:
    """Text whose numbers are computed, shown below its cell."""
    return Markdown("\n\n".join(sentences))


def compared(claims: Iterable[tuple[str, str, bool | None]]) -> Any:
    """A table of (what the paper's figure shows, what is found here, whether that is the same; None: not measured)."""
    words: Mapping[bool | None, str] = {True: "the same", False: "**not the same**", None: "not measured"}
    lines = ["| the paper's figure | here | |", "|---|---|---|"]
    lines += [f"| {claim} | {found} | {words[None if same is None else bool(same)]} |" for claim, found, same in claims]
    return Markdown("\n".join(lines))


def listed(names: Sequence[str]) -> str:
    """``a, b and c``; "none" of nothing."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part) or "none"


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
