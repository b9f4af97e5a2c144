"""A tenth of all workers of a decoder killed every few seconds, while texts are streamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generation_faults import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_texts_go_on_with_the_same_tokens_while_workers_are_killed(tmp_path: Path) -> None:
    result = measure(tmp_path, 0.13, 0.05, 4.0, 3, "arrow", seed=0, load=0.2)
    assert result["killed"] == 2 * result["killed_at_once"] == 6
    assert result["killing"]["texts"] > 0
    assert result["killing"]["reasons"] == result["calm"]["reasons"] == {}
