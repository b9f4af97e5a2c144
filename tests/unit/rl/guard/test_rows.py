"""Rows that a benchmark takes from its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.guard import __main__ as guard
from benchmarks.guard.runs import RunSettings


@pytest.mark.slow
def test_rows_of_other_settings_are_run_again_and_both_stay_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, float]] = []

    def row_of(seed: int, settings: RunSettings) -> dict[str, Any]:
        ran.append((seed, settings.minutes))
        return {"seed": seed, "refused": f"{settings.minutes:g} minutes"}

    monkeypatch.setattr(guard, "row_of", row_of)
    out, ten = tmp_path / "rows.jsonl", RunSettings(minutes=10.0)
    out.write_text(json.dumps({"seed": 1, "refused": "by nobody knows which settings"}) + "\n")
    guard.all_rows(range(1, 3), ten, 1, out)
    five = guard.all_rows(range(1, 3), replace(ten, minutes=5.0), 1, out)
    again = guard.all_rows(range(1, 3), ten, 1, out)
    assert ran == [(1, 10.0), (2, 10.0), (1, 5.0), (2, 5.0)]
    assert [row["refused"] for row in five] == ["5 minutes"] * 2 and again[0]["refused"] == "10 minutes"
