"""The benchmark of full-size expert calls: its modelled side is the paper's expert, its measured side a real worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks import expert_calls
from benchmarks.expert_calls import Row, measure, modelled_ms
from simulation.workloads.paper import expert_cost, paper_workload


def test_the_first_shape_is_the_paper_s_expert() -> None:
    workload = paper_workload("bert-4")
    assert expert_cost(*expert_calls.SHAPES[0]) == workload.costs[workload.experts[0].id]


def test_modelled_calls_take_longer_with_more_tokens_and_with_larger_experts() -> None:
    small, large = ([modelled_ms(*shape, tokens) for tokens in expert_calls.TOKENS] for shape in expert_calls.SHAPES)
    assert small == sorted(small) and large == sorted(large)
    assert all(a < b for a, b in zip(small, large, strict=True))


def test_a_row_s_hop_is_what_the_call_takes_beyond_the_product() -> None:
    row = Row(768, 3072, 8, call_ms=5.0, product_ms=3.5, modelled_ms=2.5)
    assert row.hop_ms == 1.5 and row.ratio == 2.0


@pytest.mark.slow
def test_small_experts_are_called_in_a_real_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_calls, "SHAPES", ((64, 128), (128, 256)))
    monkeypatch.setattr(expert_calls, "TOKENS", (1, 4))
    rows = asyncio.run(measure(tmp_path, 2))
    assert [(row.hidden, row.inner, row.tokens) for row in rows] == [
        (64, 128, 1), (64, 128, 4), (128, 256, 1), (128, 256, 4),
    ]  # fmt: skip
    assert all(row.call_ms > 0 and row.product_ms > 0 for row in rows)
