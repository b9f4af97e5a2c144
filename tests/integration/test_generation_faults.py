"""A tenth of all workers of a decoder killed every few seconds, while texts are streamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generation_faults import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("schedule", ["colocated", "arrow"])
def test_texts_go_on_with_the_same_tokens_while_workers_are_killed(tmp_path: Path, schedule: str) -> None:
    result = measure(tmp_path, 0.2, 0.05, 4.0, 3, schedule, seed=0, load=0.2)
    assert result["killed"] == 3 * result["killed_at_once"] == 9
    assert result["killing"]["texts"] > 0
    assert result["killing"]["reasons"] == result["calm"]["reasons"] == {}
