"""Stored results for the notebooks next to this file: where they are, how they are read, and sentences made of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
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


def evaluated() -> list[dict[str, Any]]:
    """Runs of all policies on the baselines' test hours."""
    return table("baselines", "results.csv")


def say(*sentences: str) -> Any:
    """Text whose numbers are computed, shown below its cell."""
    return Markdown("\n\n".join(sentences))


def windows() -> list[dict[str, Any]]:
    """Windows with an answer of these runs, as far as they are stored."""
    path = RESULTS / "baselines" / "windows.parquet"
    rows = pq.read_table(path).to_pylist() if path.is_file() else []
    return [row for row in rows if row["p95_s"] is not None]


OURS = "(ours)"
"""Before a statement that is not the paper's."""


def compared(claims: Iterable[tuple[str, str, bool | None]]) -> Any:
    """A table of (what the paper's figure shows, what is found here, whether that is so; None: not measured)."""
    lines = ["| the paper's figure | here | |", "|---|---|---|"]
    for claim, measured, holds in claims:
        words = ("true", "**not true**") if claim.startswith(OURS) else ("the same", "**not the same**")
        verdict = "not measured" if holds is None else words[0] if holds else words[1]
        lines.append(f"| {claim} | {measured} | {verdict} |")
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
