"""Order of changes, failures, and looking whether they came about."""

from __future__ import annotations

import threading

from autoscaler.actuator.actuator import apply, plan, verify
from autoscaler.contract import Configuration, Decision
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import configuration


def decision(function: str, target: Configuration, present: Configuration | None = None) -> Decision:
    return Decision(function, function, present or configuration(2), target, target, "")


def test_capacity_is_added_before_any_is_taken_away() -> None:
    decisions = [
        decision("a", configuration(1)),
        decision("b", configuration(3)),
        decision("c", configuration(2, memory_mb=128)),
        decision("d", configuration(1, memory_mb=512)),
        decision("e", configuration(2)),
    ]
    assert [one.function for one in plan(decisions)] == ["b", "d", "a", "c"]


def test_held_decisions_are_not_carried_out() -> None:
    assert plan([decision("a", configuration(3))._replace(valid=False)]) == []


def test_an_unreachable_platform_is_tried_once_a_tick_and_not_for_every_function() -> None:
    platform = FakePlatform(dict.fromkeys("abc", configuration(2)))
    platform.down = True
    result = apply(platform, [decision(name, configuration(3)) for name in "abc"])
    assert result.applied == [] and result.failures["a"] == "the platform does not answer"
    assert result.failures["c"] == "not tried: the platform does not answer"


def test_a_change_that_shows_late_is_waited_for_a_moment() -> None:
    now = [0.0]
    platform = FakePlatform({"a": configuration(2)}, clock=lambda: now[0], delay_s=0.4)

    def wait(pause_s: float) -> None:
        now[0] += pause_s

    assert apply(platform, [decision("a", configuration(3))], wait).applied == ["a"]
    assert now[0] == 0.5


def test_a_change_that_does_not_show_is_a_failure_and_its_repair_another_tick_s() -> None:
    platform = FakePlatform({"a": configuration(2)}, clock=lambda: 0.0, delay_s=9.0)
    result = apply(platform, [decision("a", configuration(3))], lambda _: None)
    assert result.applied == [] and "asked for 3 replicas" in result.failures["a"]


def test_an_outcome_that_cannot_be_read_is_not_called_applied() -> None:
    platform = FakePlatform({"a": configuration(2)})
    platform.apply("a", configuration(2), configuration(3))
    platform.down = True
    outcomes = verify(platform, {"a": configuration(3)}, lambda _: None)
    assert "could not be read" in outcomes["a"]


class Counting(FakePlatform):
    """Lets orders pass two by two: one alone waits for another."""

    def __init__(self, functions: dict[str, Configuration]) -> None:
        super().__init__(functions)
        self.pairs = threading.Barrier(2, timeout=100)

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        self.pairs.wait()
        super().apply(function, present, target)


def test_orders_that_a_platform_takes_at_once_wait_together_and_growth_is_over_before_the_rest_begins() -> None:
    platform = Counting(dict.fromkeys("abcd", configuration(2)))
    targets = {"a": configuration(1), "b": configuration(3), "c": configuration(1), "d": configuration(3)}
    result = apply(platform, [decision(name, one) for name, one in targets.items()], at_once=2)
    assert result.applied == ["b", "d", "a", "c"] and not result.failures
    assert {name for name, _ in platform.orders[:2]} == {"b", "d"}


def test_one_failure_among_orders_at_once_is_its_own() -> None:
    platform = FakePlatform(dict.fromkeys("abc", configuration(2)))
    platform.broken.add("b")
    result = apply(platform, [decision(name, configuration(3)) for name in "abc"], at_once=3)
    assert result.applied == ["a", "c"] and "could not be changed" in result.failures["b"]


def test_orders_at_once_are_given_up_when_the_platform_is_out_of_reach() -> None:
    platform = FakePlatform(dict.fromkeys("abcdefgh", configuration(2)))
    platform.down = True
    result = apply(platform, [decision(name, configuration(3)) for name in "abcdefgh"], at_once=2)
    assert result.applied == [] and set(result.failures) == set("abcdefgh")
    assert any(why == "not tried: the platform does not answer" for why in result.failures.values())


def test_a_function_that_vanished_is_reported() -> None:
    platform = FakePlatform({"a": configuration(2)})
    result = apply(platform, [decision("a", configuration(3)), decision("b", configuration(3))], lambda _: None)
    assert result.applied == ["a"] and "not deployed" in result.failures["b"]
