"""A shadow decides on and on without changing anything, and tells what it would have cost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoscaler.contract import Observation
from autoscaler.errors import FunctionGoneError, UnreachableError
from autoscaler.platforms.shadow import ShadowBill, ShadowPlatform
from functions.dispatch.activation import Burst
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import PRICES, configuration, observation

F = "m-expert-0-0"


@pytest.fixture
def real() -> FakePlatform:
    return FakePlatform({F: configuration(), "m": configuration(2)})


def test_orders_show_and_are_never_sent(real: FakePlatform) -> None:
    shadow = ShadowPlatform(real)
    shadow.apply(F, configuration(), configuration(4))
    assert shadow.configurations() == {F: configuration(4), "m": configuration(2)}
    assert real.orders == [] and real.configurations()[F] == configuration()


def test_what_really_changes_shows_where_nothing_was_ordered(real: FakePlatform) -> None:
    shadow = ShadowPlatform(real)
    shadow.apply(F, configuration(), configuration(4))
    real.functions["m"] = configuration(7)
    assert shadow.configurations() == {F: configuration(4), "m": configuration(7)}
    del real.functions[F]
    assert shadow.configurations() == {"m": configuration(7)}
    real.functions[F] = configuration()
    assert shadow.configurations()[F] == configuration()


def test_a_window_costs_what_is_and_what_was_pretended_before_it(real: FakePlatform) -> None:
    """A replica is 1 core at 2 and a quarter of a GiB at 1 a second: 2.25; three are there, six would be."""
    shadow = ShadowPlatform(real)
    shadow.configurations()
    shadow.apply(F, configuration(), configuration(4))
    seen = observation({"expert-0-0": {"busy_s": 25.0}, "ingress": {"busy_s": 4.0, "ready_replicas": 2}})
    before, after = (shadow.window_costs(seen, PRICES) for _ in range(2))
    assert before.real == before.shadow == after.real
    # 10 s: the one replica was busy for all of it, four would have been for the 25 s that calls took
    assert (after.real.busy, after.real.provisioned) == pytest.approx(((10 + 4) * 2.25, 3 * 22.5))
    assert (after.shadow.busy, after.shadow.provisioned) == pytest.approx(((25 + 4) * 2.25, 6 * 22.5))


def test_replicas_that_are_there_cost_nothing_where_fewer_would_be(real: FakePlatform) -> None:
    real.functions[F] = configuration(4)
    shadow = ShadowPlatform(real)
    shadow.configurations()
    shadow.apply(F, configuration(4), configuration(1))
    seen = observation({"expert-0-0": {"ready_replicas": 4, "busy_replica_s": 35.0}, "ingress": {"ready_replicas": 2}})
    shadow.window_costs(seen, PRICES)
    after = shadow.window_costs(seen, PRICES)
    assert (after.real.busy, after.real.provisioned) == pytest.approx((35 * 2.25, 6 * 22.5))
    assert (after.shadow.busy, after.shadow.provisioned) == pytest.approx((10 * 2.25, 3 * 22.5))


ASLEEP = Burst(3, sleep_s=2.0)


@pytest.mark.parametrize(
    ("present", "pretended", "busy_s", "activated_s", "paid"),
    [
        pytest.param(None, Burst(3), 8.0, None, 22.5 + 30 * 0.25, id="standbys that nothing needs"),
        pytest.param(None, Burst(3), 25.0, None, 22.5 + 15 * 2.25 + 15 * 0.25, id="what one replica has no time for"),
        pytest.param(None, ASLEEP, 8.0, None, 8 * 2.25 + 32 * 0.25, id="replicas that sleep"),
        pytest.param(None, ASLEEP, 99.0, None, 40 * 2.25, id="no more than there would be"),
        pytest.param(None, Burst(3), None, None, 40 * 2.25, id="what is not known counts in full"),
        pytest.param(Burst(3), None, 25.0, 20.0, 22.5, id="the real standbys are none of it"),
        pytest.param(ASLEEP, replace(ASLEEP, token_s=0.1), 8.0, 20.0, 8 * 2.25 + 32 * 0.25, id="another rule"),
    ],
)
def test_standbys_that_are_not_there_cost_at_least_what_calls_need(
    present: Burst | None, pretended: Burst | None, busy_s: float | None, activated_s: float | None, paid: float
) -> None:
    """One replica, of 2.25 a second and 0.25 while it waits, for 10 s."""
    before, after = replace(configuration(), burst=present), replace(configuration(), burst=pretended)
    shadow = ShadowPlatform(FakePlatform({F: before}))
    shadow.configurations()
    shadow.apply(F, before, after)
    seen = observation({"expert-0-0": {"busy_s": busy_s, "activated_s": activated_s}})
    shadow.window_costs(seen, PRICES)
    assert shadow.window_costs(seen, PRICES).shadow.provisioned == pytest.approx(paid)


def test_standbys_of_the_real_rule_were_activated_as_long_as_they_were() -> None:
    """Two replicas instead of one next to three standbys, activated for 20 s."""
    before = replace(configuration(), burst=Burst(3))
    shadow = ShadowPlatform(FakePlatform({F: before}))
    shadow.configurations()
    shadow.apply(F, before, before.with_replicas(2))
    seen = observation({"expert-0-0": {"busy_s": 8.0, "activated_s": 20.0}})
    shadow.window_costs(seen, PRICES)
    cost = shadow.window_costs(seen, PRICES)
    assert cost.real.provisioned == pytest.approx(10 * 2.25 + 20 * 2.25 + 10 * 0.25)
    assert cost.shadow.provisioned == pytest.approx(20 * 2.25 + 20 * 2.25 + 10 * 0.25)


def bill(real: FakePlatform) -> tuple[ShadowPlatform, ShadowBill]:
    shadow = ShadowPlatform(real)
    shadow.configurations()
    return shadow, ShadowBill(shadow, PRICES, "hpa")


def window(end_s: float, busy_s: float | None = 12.0) -> Observation:
    """30 s long, as with a Prometheus; windows overlap."""
    seen = {"ingress": {"busy_s": 0.0, "ready_replicas": 2}, "expert-0-0": {"busy_s": busy_s}}
    return observation(seen, start_s=end_s - 30.0, end_s=end_s)


def test_a_run_costs_what_the_time_between_its_ticks_did_however_long_windows_are(real: FakePlatform) -> None:
    shadow, found = bill(real)
    found.add(window(0.0))
    shadow.apply(F, configuration(), configuration(4))
    for end_s in (5.0, 15.0):
        found.add(window(end_s))
    found.add(window(20.0))
    # the order came with the tick at 5 s: the time before it costs what there is
    assert found.seconds == {"busy": 20.0, "provisioned": 20.0}
    assert found.real == pytest.approx({"busy": 0.4 * 20 * 2.25, "provisioned": 3 * 20 * 2.25})
    assert found.shadow == pytest.approx({"busy": 0.4 * 20 * 2.25, "provisioned": (3 * 5 + 6 * 15) * 2.25})
    assert found.verdict() == (
        "shadow: hpa would have cost $236 provisioned instead of $135 in 20 s (+75.0%), "
        "would have cost $18.0 busy instead of $18.0 in 20 s (+0.0%)"
    )
    assert found.line() == "shadow: $405 instead of $202 in this window, $236 instead of $135 so far"


def test_time_of_which_one_cost_is_not_known_counts_for_neither(real: FakePlatform) -> None:
    _, found = bill(real)
    found.add(window(0.0))
    found.add(window(5.0, None))
    found.add(window(15.0))
    assert found.seconds == {"busy": 10.0, "provisioned": 15.0}
    assert found.real["busy"] == found.shadow["busy"] == pytest.approx(0.4 * 10 * 2.25)
    assert json.loads(json.dumps(found.summary()))["total"]["busy"]["seconds"] == 10.0


def test_a_run_without_any_known_cost_says_so() -> None:
    _, found = bill(FakePlatform({}))
    found.add(window(0.0))
    found.add(window(5.0))
    assert found.verdict() == ("shadow: hpa has no provisioned cost that is known, has no busy cost that is known")


def test_what_is_not_deployed_or_not_reached_is_reported(real: FakePlatform) -> None:
    shadow = ShadowPlatform(real)
    with pytest.raises(FunctionGoneError):
        shadow.apply("x", configuration(), configuration(2))
    real.down = True
    with pytest.raises(UnreachableError):
        shadow.configurations()
