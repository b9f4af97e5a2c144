"""A running decoder measured as its clients see it, and compared with the simulation of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generation import build
from benchmarks.generation_fidelity import compare
from benchmarks.generation_soak import SMALL
from simulation.profiles.generation.measure import Decoder, Settings, measure, points
from simulation.profiles.model.errors import ProfileError

FEW = Settings(prompts=(1, 8, 40, 4096), decodes=((1, 4), (16, 8)), tokens=6, repeats=2)


@pytest.mark.slow
def test_a_decoder_is_measured_and_a_trace_on_it_simulated_and_replayed(tmp_path: Path) -> None:
    build(tmp_path, SMALL, 0)
    result = compare(tmp_path / "random", ["made-llm"], None, 6, 16.0, [1.0], 2, FEW)
    (cell,) = result["cells"]
    assert set(cell["live"]) == set(cell["simulated"]) == {"ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95"}
    assert all(0.02 < cell["simulated"][key] / cell["live"][key] < 50 for key in cell["live"])  # the same unit


def test_sizes_beyond_the_context_are_left_out() -> None:
    assert points(Decoder("http://127.0.0.1:1", "none", 10, 512), FEW) == [(0, 1), (0, 8), (0, 40), (1, 4), (16, 8)]


def test_what_does_not_answer_is_refused_in_a_sentence() -> None:
    with pytest.raises(ProfileError, match="cannot be measured"):
        measure(Decoder("http://127.0.0.1:1", "none", 10, 512), FEW)
