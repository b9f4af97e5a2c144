"""A shadow decides on and on without changing anything, and tells what it would have cost."""

from __future__ import annotations

import pytest

from autoscaler.errors import FunctionGoneError, UnreachableError
from autoscaler.platform.fake import FakePlatform
from autoscaler.platform.shadow import ShadowPlatform
from tests.unit.autoscaler.builders import PRICES, configuration

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


def test_costs_of_what_is_and_of_what_would_be(real: FakePlatform) -> None:
    """A replica is 1 core at 2 and a quarter of a GiB at 1 a second: 2.25; three are there, six would be."""
    shadow = ShadowPlatform(real)
    shadow.configurations()
    shadow.apply(F, configuration(), configuration(4))
    assert shadow.costs(10.0, PRICES) == pytest.approx((3 * 22.5, 6 * 22.5))


def test_what_is_not_deployed_or_not_reached_is_told(real: FakePlatform) -> None:
    shadow = ShadowPlatform(real)
    with pytest.raises(FunctionGoneError):
        shadow.apply("x", configuration(), configuration(2))
    real.down = True
    with pytest.raises(UnreachableError):
        shadow.configurations()
