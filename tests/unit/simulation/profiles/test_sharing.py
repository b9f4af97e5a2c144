"""What calls cost next to others: the fit of batches and of passes in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.latency.contract import ALONE, Sharing
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.sharing import fit_sharing, further_s
from tests.unit.simulation.profiles import truth

FURTHER_S = 0.0003


def again_s(tokens: float) -> float:
    return 0.0004 + 0.00001 * tokens


def pass_s(tokens: float) -> float:
    return 0.001 + 0.00001 * tokens


def row(family: str, tokens: int, callers: int, calls: float, product_s: float) -> Row:
    each_s = (product_s + (calls - 1) * FURTHER_S) / calls
    return replace(
        truth.BLANK, family=family, tokens=tokens, concurrency=callers, cpu_s_per_call=each_s, batch_calls=calls
    )


BUSY = [row("concurrency", t, m, m / 2, again_s(m / 2 * t)) for t in (8, 32) for m in (2, 3, 4, 8)]


def passes(times: dict[int, float], calls: float = 1.3, tokens: int = 17) -> list[Row]:
    rows = [row("stopped", tokens, callers, calls, pass_s(calls * tokens)) for callers in times]
    return [replace(one, cpu_s_per_call=(one.cpu_s_per_call or 0.0) * times[one.concurrency]) for one in rows]


def test_the_fit_finds_what_each_further_call_of_a_batch_costs_and_what_passes_in_flight_do() -> None:
    sharing = fit_sharing(BUSY, passes({2: 0.9, 4: 0.8}), again_s, pass_s, 128)
    assert sharing.further_s == pytest.approx(FURTHER_S, rel=1e-9)
    assert sharing.in_flight == pytest.approx((1.0, 0.9, 0.85, 0.8))
    assert [sharing.times(requests) for requests in (1, 2, 9)] == pytest.approx([1.0, 0.9, 0.8])


def test_the_median_of_repeats_counts() -> None:
    sharing = fit_sharing(BUSY, [*passes({2: 0.9}), *passes({2: 0.7}), *passes({2: 0.8})], again_s, pass_s, 128)
    assert sharing.in_flight == pytest.approx((1.0, 0.8))


def test_batches_of_more_tokens_than_lone_calls_had_are_left_out() -> None:
    far = replace(row("concurrency", 128, 4, 2.0, again_s(256)), cpu_s_per_call=9.0)
    assert further_s([*BUSY, far], again_s, 128) == pytest.approx(FURTHER_S, rel=1e-9)


@pytest.mark.parametrize("calls", [None, 1.0])
def test_where_no_batch_was_counted_its_calls_cost_their_tokens_alone(calls: float | None) -> None:
    assert further_s([replace(one, batch_calls=calls) for one in BUSY], again_s, 128) == 0.0


def test_batches_that_are_cheaper_than_their_tokens_cost_no_less_than_those() -> None:
    cheap = [replace(one, cpu_s_per_call=0.5 * (one.cpu_s_per_call or 0.0)) for one in BUSY]
    assert fit_sharing(cheap, [], again_s, pass_s, 128) == ALONE == Sharing()
