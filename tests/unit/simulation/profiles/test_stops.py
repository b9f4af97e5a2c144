"""What stops by a CPU limit cost calls: the fit of counted passes, and what the model makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from simulation.latency.contract import NodeCost, Sharing
from simulation.profiles.fit.fitting import fit
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.stops import fit_stops
from simulation.profiles.measure.throttle import limit_of
from simulation.profiles.model.profiled import FittedLatencyModel
from tests.unit.simulation.profiles import truth

STOP_S = 0.0001
AFTER_S = {0.006: 0.0009, 0.03: 0.0005, 0.12: 0.0002}
"""By share: the smaller, the longer a replica stands still."""
COST = NodeCost("expert", 1e6, 0.0, 0.0, 1e6, 1e6, 1e3, 1e3)


def product_s(tokens: int, calls: float) -> float:
    return truth.Truth().work_s(tokens) * (1 + truth.Truth().batch_part * (calls - 1))


def counted(share: float, callers: int, calls: float, stops: float, tokens: int = 16) -> Row:
    """Passes at one share: so many ``calls`` in a product, so many ``stops`` of a product. Calls within passes take
    half of what they take by themselves."""
    more_s = STOP_S * stops + AFTER_S.get(share, 0.0) * min(1.0, stops)
    return replace(
        truth.BLANK,
        family="stopped",
        tokens=tokens,
        share=share,
        concurrency=callers,
        mean_s=None,
        cpu_s_per_call=(0.5 * product_s(tokens, calls) + more_s) / calls,
        stops_per_call=stops / calls,
        batch_calls=calls,
    )


ROWS = [
    *(counted(1.0, 2, 1.05, 0.0), counted(1.0, 8, 1.3, 0.0, tokens=18)),
    *(counted(0.12, 2, 1.0, 0.1), counted(0.12, 8, 1.4, 0.5)),
    *(counted(0.03, 2, 1.1, 0.4), counted(0.03, 8, 1.8, 1.0)),
    *(counted(0.006, 2, 1.2, 0.8), counted(0.006, 8, 2.5, 1.9)),
]


def test_the_fit_finds_what_a_stop_costs_and_what_the_product_after_it_does() -> None:
    stops = fit_stops(ROWS, product_s)
    assert stops is not None and stops.stop_s == pytest.approx(STOP_S, rel=1e-6)
    for share, after_s in AFTER_S.items():
        limit = limit_of(share, 0.0)
        assert float(stops.after_s(limit.period_s - limit.quota_s)) == pytest.approx(after_s, rel=1e-6)
    assert stops.after_s([0.0, 10.0]).tolist() == pytest.approx([0.0, 0.0009])  # colder than cold there is not


def test_a_repeat_on_a_slower_machine_is_compared_with_its_own_full_core() -> None:
    slower = [replace(row, repeat=1, cpu_s_per_call=1.5 * (row.cpu_s_per_call or 0.0)) for row in ROWS]
    alone, both = fit_stops(ROWS, product_s), fit_stops([*ROWS, *slower], product_s)
    assert alone is not None and both is not None
    for share in AFTER_S:
        still_s = limit_of(share, 0.0).period_s - limit_of(share, 0.0).quota_s
        assert float(alone.after_s(still_s)) <= float(both.after_s(still_s)) <= 1.5 * float(alone.after_s(still_s))


def test_how_long_a_replica_stood_still_goes_by_the_period_of_its_row() -> None:
    stops = fit_stops([replace(row, period_s=0.2) for row in ROWS], product_s)
    assert stops is not None and stops.after is not None
    assert stops.after.at.tolist() == pytest.approx([0.2 * (1 - share) for share in sorted(AFTER_S, reverse=True)])


@pytest.mark.parametrize(
    "rows",
    [[], ROWS[2:], ROWS[:2], [replace(row, batch_calls=None) for row in ROWS]],
    ids=["none", "no full core to compare with", "nothing limited", "products not counted"],
)
def test_rows_that_do_not_tell_give_no_fit(rows: Sequence[Row]) -> None:
    assert fit_stops(rows, product_s) is None


def test_where_no_product_was_stopped_twice_a_stop_in_its_midst_is_taken_to_cost_nothing() -> None:
    stops = fit_stops([row for row in ROWS if (row.stops_per_call or 0.0) < 0.7], product_s)
    assert stops is not None and stops.stop_s == 0.0


def test_what_stops_cost_is_that_of_a_lone_pass_which_others_in_flight_make_less() -> None:
    sharing = Sharing(0.0, (1.0, 0.5))
    cheap = [replace(row, cpu_s_per_call=0.5 * (row.cpu_s_per_call or 0.0)) for row in ROWS]
    stops = fit_stops(cheap, product_s, sharing)
    assert stops is not None and stops.stop_s == pytest.approx(STOP_S, rel=1e-6)


def model(rows: list[Row]) -> FittedLatencyModel:
    fitted = fit(rows, truth.TICK_S)
    return FittedLatencyModel("made", {COST: fitted.nodes["expert-0-0"]}, fitted.tick_s)


def test_a_model_states_counted_stops_and_without_them_those_of_calls_that_follow_each_other() -> None:
    limits = np.array([1.0, 0.03])
    before, after = model(truth.rows(truth.Truth())), model([*truth.rows(truth.Truth()), *ROWS])
    assert np.all(before.throttle(COST, limits, 0.0).after_stop_s == 0.0)
    limit = after.throttle(COST, limits, 0.0)
    assert np.asarray(limit.after_stop_s) == pytest.approx([0.0, 0.0005], rel=0.05)
    assert limit.stop_s == pytest.approx(STOP_S, rel=0.05)
    assert after.work_seconds(COST, 32) == before.work_seconds(COST, 32)  # of unlimited calls nothing else was learnt
