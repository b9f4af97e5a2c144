"""When a pipeline counts as warm, and that nothing before that is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.errors import GatewayRefusedError
from moe.threads import computing_threads
from smoe import parity
from smoe.parity import FASTER, MOST_ROUNDS, ROUNDS, STEADY_ROUNDS, compare, compare_with_whole_model, is_warm

TEXTS = ("a", "b", "c")


class Pipeline:
    """Passes that take the seconds of a list, then its last value for ever, on a clock of their own."""

    def __init__(self, *round_s: float, wrong: float = 0.0) -> None:
        self.now_s = 0.0
        self.asked = 0
        self._seconds = self._passes(round_s)
        self._wrong = wrong

    def _passes(self, round_s: tuple[float, ...]) -> Iterator[float]:
        for seconds in round_s:
            yield from [seconds] * len(TEXTS)
        while True:
            yield round_s[-1]

    def clock(self) -> float:
        return self.now_s

    def served(self, text: str) -> torch.Tensor:
        self.now_s += next(self._seconds)
        self.asked += 1
        return torch.tensor([1.0, 2.0 + self._wrong * (self.asked == 1)])

    def whole(self, text: str) -> torch.Tensor:
        self.now_s += 0.001
        return torch.tensor([1.0, 2.0])


def test_cold_passes_are_not_measured() -> None:
    pipeline = Pipeline(1.4, 0.3, 0.2, 0.12, 0.115)
    compared = compare(pipeline.served, pipeline.whole, TEXTS, pipeline.clock)
    assert compared.unloaded_p50_s == pytest.approx(0.115) and compared.cold_p50_s == pytest.approx(1.4)
    assert compared.whole_p50_s == pytest.approx(0.001)
    assert (compared.warm, compared.warm_up_passes, compared.measured_passes) == (True, 6 * 3, ROUNDS * 3)
    assert pipeline.asked == compared.warm_up_passes + compared.measured_passes


def test_what_never_stops_getting_faster_is_measured_after_a_bounded_number_of_rounds_and_says_so() -> None:
    pipeline = Pipeline(*[0.8**number for number in range(100)])
    compared = compare(pipeline.served, pipeline.whole, TEXTS, pipeline.clock)
    assert not compared.warm and compared.warm_up_passes == MOST_ROUNDS * len(TEXTS)
    assert compared.unloaded_p50_s == pytest.approx(0.8 ** (MOST_ROUNDS + ROUNDS // 2))


def test_a_wrong_answer_counts_in_any_pass_even_a_cold_one() -> None:
    pipeline = Pipeline(0.1, wrong=0.5)
    assert compare(pipeline.served, pipeline.whole, TEXTS, pipeline.clock).max_rel_err == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("medians_ms", "warm"),
    [
        pytest.param([], False, id="nothing-played"),
        pytest.param([100, 100], False, id="too-few-rounds"),
        pytest.param([100, 100, 100], True, id="steady-from-the-start"),
        pytest.param([300, 140, 120, 118], False, id="one-steady-round-only"),
        pytest.param([300, 140, 120, 118, 115], True, id="two-steady-rounds"),
        pytest.param([300, 120, 200, 250], True, id="a-disturbed-round-is-no-faster"),
        pytest.param([300, 120, 200, 100], False, id="faster-than-the-best-is-not-steady"),
    ],
)
def test_rounds_that_stopped_getting_faster_are_warm(medians_ms: list[float], warm: bool) -> None:
    assert is_warm(medians_ms) is warm


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=40))
def test_the_least_falls_by_less_than_a_tenth_over_the_rounds_that_made_it_warm(medians_s: list[float]) -> None:
    if is_warm(medians_s):
        before = min(medians_s[:-STEADY_ROUNDS])
        assert min(medians_s) >= FASTER**STEADY_ROUNDS * before


@pytest.mark.parametrize("status", [200, 503])
def test_the_whole_model_has_one_thread_and_the_process_its_own_number_afterwards(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Whole:
        def __init__(self, directory: Path) -> None:
            assert directory == Path("pipeline")

        def embed(self, texts: Sequence[str]) -> torch.Tensor:
            assert torch.get_num_threads() == 1
            return torch.ones(len(texts), 2)

    class Client:
        def invoke(self, name: str, body: bytes, content_type: str, timeout_s: float) -> SimpleNamespace:
            return SimpleNamespace(status_code=status, text="busy", json=lambda: {"embeddings": [[1.0, 1.0]]})

    monkeypatch.setattr(parity, "WholeModel", Whole)
    with computing_threads(3):
        if status == 200:
            assert compare_with_whole_model(Client(), "minilm", Path("pipeline"), TEXTS).max_rel_err == 0.0  # type: ignore[arg-type]
        else:
            with pytest.raises(GatewayRefusedError, match="minilm answered 503: busy"):
                compare_with_whole_model(Client(), "minilm", Path("pipeline"), TEXTS)  # type: ignore[arg-type]
        assert torch.get_num_threads() == 3
