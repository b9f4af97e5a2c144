"""Growth of counters over scrapes: resets, windows that add up, targets that come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.monitor.growth import Scrape, TargetHistory, increases, readings_of
from autoscaler.monitor.scrape import parse_exposition
from autoscaler.state.readings import Readings, Series

KEY = ("smoe_node_tokens_total", (("node", "expert-0-0"), ("pipeline", "m")))
OTHER = ("smoe_node_tokens_total", (("node", "expert-0-1"), ("pipeline", "m")))
LABELS = ("m", "expert-0-0")


def counted(*values: float, every_s: float = 1.0) -> list[Scrape]:
    return [(i * every_s, {KEY: value}) for i, value in enumerate(values)]


def history(job: str, scrapes: list[Scrape], listed: bool = True) -> TargetHistory:
    history = TargetHistory(job, listed=listed)
    history.scrapes.extend(scrapes)
    return history


def read(ingress: list[Scrape], now_s: float, window_s: float, **more: TargetHistory) -> Readings:
    gateway = history("gateway", [(time_s, {}) for time_s, _ in ingress])
    return readings_of({"g": gateway, "i": history("ingress", ingress), **more}, now_s, window_s)


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        pytest.param((5, 7, 12), 7, id="grows"),
        pytest.param((5, 7, 2, 3), 2 + 2 + 1, id="a fall is a restart from zero"),
        pytest.param((5, 0, 0), 0, id="restarted and idle"),
        pytest.param((5, 5), 0, id="stands"),
    ],
)
def test_growth_of_a_counter(values: tuple[float, ...], grown: float) -> None:
    assert increases(counted(*values))[KEY] == grown


def test_a_series_that_appears_began_at_zero() -> None:
    assert increases([(0, {}), (1, {KEY: 4.0})]) == {KEY: 4.0}


def test_a_series_that_was_away_for_a_scrape_goes_on_from_where_it_was() -> None:
    assert increases([(0, {KEY: 10.0}), (1, {}), (2, {KEY: 12.0})]) == {KEY: 2.0}


steps = st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=30)
"""What a process counts between two scrapes, and whether it restarted before that."""


def counter(steps: list[tuple[int, bool]]) -> list[float]:
    """The counter's value at each scrape. A restart shows only when the counter then stands lower than before."""
    values = [0.0]
    for amount, restarted in steps:
        values.append(amount if restarted and amount < values[-1] else values[-1] + amount)
    return values


@given(steps)
def test_growth_is_all_that_was_counted_whatever_restarts_come_between(steps: list[tuple[int, bool]]) -> None:
    assert increases(counted(*counter(steps))).get(KEY, 0.0) == sum(amount for amount, _ in steps)


@given(steps, st.integers(1, 5))
def test_windows_one_after_the_other_add_up_to_all_that_was_counted(
    steps: list[tuple[int, bool]], ticks_a_window: int
) -> None:
    scrapes = counted(*counter(steps))
    found, last = 0.0, 0
    for end in range(ticks_a_window, len(scrapes), ticks_a_window):
        found += read(scrapes[: end + 1], end, ticks_a_window).value(Series.NODE_TOKENS, *LABELS) or 0.0
        last = end
    assert found == sum(amount for amount, _ in steps[:last])


def test_the_window_is_as_long_as_the_scrapes_reach() -> None:
    young = read(counted(0, 10), 1.0, 30.0)
    assert young.window_s == 1 and young.value(Series.NODE_TOKENS, *LABELS) == 10
    late = read(counted(0, 10, 30, every_s=4), 8.0, 3.0)
    assert (late.start_s, late.end_s) == (4.0, 8.0) and late.value(Series.NODE_TOKENS, *LABELS) == 20


@given(st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=12))
def test_ticks_that_come_early_or_late_make_windows_that_meet_and_do_not_overlap(jitter: list[float]) -> None:
    times = [i + offset for i, offset in enumerate(jitter)]
    scrapes: list[Scrape] = [(time_s, {KEY: 10.0 * i}) for i, time_s in enumerate(times)]
    for i in range(1, len(times)):
        readings = read(scrapes[: i + 1], times[i], 1.0)
        assert (readings.start_s, readings.end_s) == (times[i - 1], times[i])
        assert readings.value(Series.NODE_TOKENS, *LABELS) == 10.0


def test_one_scrape_makes_no_window() -> None:
    readings = read(counted(5), 0.0, 5.0)
    assert readings.stale and "two scrapes are needed" in readings.problems[-1]


def test_a_target_that_has_gone_still_counts_for_its_time_but_no_longer_shows() -> None:
    gauge = ("smoe_requests_in_flight", (("pipeline", "m"),))
    gone = history("ingress", [(0.0, {KEY: 0.0, gauge: 7.0}), (1.0, {KEY: 5.0, gauge: 7.0})], listed=False)
    readings = read([(float(i), {KEY: 0.0, gauge: 1.0}) for i in range(3)], 2.0, 2.0, gone=gone)
    assert readings.value(Series.NODE_TOKENS, *LABELS) == 5
    assert readings.value(Series.REQUESTS_IN_FLIGHT, "m") == 1
    assert not readings.stale and not readings.problems


def test_a_target_that_does_not_answer_any_more_is_reported_and_makes_the_window_stale() -> None:
    gateway = history("gateway", [(float(t), {}) for t in range(41)])
    readings = readings_of({"g": gateway, "i": history("ingress", counted(0, 1))}, 40.0, 5.0)
    assert readings.stale and any(
        "i (ingress) has no scrape younger than 15 s" in problem for problem in readings.problems
    )
    assert readings.value(Series.NODE_TOKENS, *LABELS) is None


@pytest.mark.parametrize("back", [7200.0, 12.0], ids=["it went on counting", "it started again"])
def test_what_was_counted_while_nobody_could_look_is_of_no_window(back: float) -> None:
    """A minute of calls in a window of 5 s would look like twelve times the load, a restart like none at all."""
    gateway = history("gateway", [(float(t), {}) for t in range(0, 75, 5)])
    away: list[Scrape] = [(0.0, {KEY: 6000.0}), (5.0, {KEY: 6100.0})]
    first = readings_of({"g": gateway, "i": history("ingress", [*away, (65.0, {KEY: back})])}, 65.0, 5.0)
    assert first.stale and "two scrapes are needed" in first.problems[-1]
    assert first.value(Series.NODE_TOKENS, "m", "expert-0-0") is None
    seen: list[Scrape] = [*away, (65.0, {KEY: back}), (70.0, {KEY: back + 100.0})]
    second = readings_of({"g": gateway, "i": history("ingress", seen)}, 70.0, 5.0)
    assert not second.stale and second.value(Series.NODE_TOKENS, "m", "expert-0-0") == 100.0


def test_replicas_of_the_ingress_are_summed_and_gateways_are_not() -> None:
    def gateway_scrape(time_s: float) -> Scrape:
        return time_s, {("gateway_service_count", (("function_name", "m.openfaas-fn"),)): 2.0}

    targets = {
        "g1": history("gateway", [gateway_scrape(0), gateway_scrape(1)]),
        "g2": history("gateway", [gateway_scrape(0), gateway_scrape(1)]),
        "i1": history("ingress", counted(0, 3)),
        "i2": history("ingress", counted(0, 4)),
    }
    readings = readings_of(targets, 1.0, 1.0)
    assert readings.value(Series.NODE_TOKENS, *LABELS) == 7
    assert readings.value(Series.REPLICAS_WANTED, "m.openfaas-fn") == 2


def test_only_replicas_measured_over_the_window_count_as_measured() -> None:
    def cpu(replica: str) -> tuple[str, tuple[tuple[str, str], ...]]:
        return "smoe_replica_cpu_seconds_total", (("function_name", "f"), ("replica", replica))

    scrapes: list[Scrape] = [(0.0, {cpu("old"): 1.0, cpu("gone"): 1.0}), (1.0, {cpu("old"): 2.0, cpu("new"): 5.0})]
    readings = readings_of({"g": history("gateway", scrapes), "i": history("ingress", counted(0, 0))}, 1.0, 1.0)
    assert readings.count(Series.REPLICA_CPU_SECONDS, "f") == 1
    assert readings.value(Series.REPLICA_CPU_SECONDS, "f") == 6.0
    assert readings.measured[Series.REPLICA_CPU_SECONDS] == {("f",): 1.0}


def test_only_samples_of_the_catalogue_are_parsed_and_what_cannot_be_is_no_number() -> None:
    text = (
        "# HELP smoe_node_tokens_total x\n# TYPE smoe_node_tokens_total counter\n"
        'smoe_node_tokens_total{node="expert-0-0",pipeline="m"} 4.0\n'
        'smoe_node_tokens_total{node="expert-0-1",pipeline="m"} NaN\n'
        'smoe_node_tokens_total{node="expert-0-2",pipeline="m"} -4\n'
        'smoe_node_tokens_total{node="expert-0-3",pipeline="m"} +Inf\n'
        'smoe_node_tokens_total{node="expert-0-4",pipeline="m"} 1e300\n'
        'smoe_request_seconds_bucket{pipeline="m",le="0.5"} 3\n'
        'smoe_request_seconds_sum{pipeline="m"} 1.5\nsmoe_request_seconds_count{pipeline="m"} 3\n'
        "go_goroutines 7\n"
    )
    parsed = parse_exposition(text)
    assert parsed == {
        KEY: 4.0,
        ("smoe_request_seconds_bucket", (("le", "0.5"), ("pipeline", "m"))): 3.0,
        ("smoe_request_seconds_sum", (("pipeline", "m"),)): 1.5,
    }


def test_a_damaged_exposition_is_an_error() -> None:
    with pytest.raises(ValueError):
        parse_exposition('smoe_node_tokens_total{node="expert-0-0 4.0\n')
