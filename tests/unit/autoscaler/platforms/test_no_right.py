"""A controller without the right to what it orders, on the API double: told once, done otherwise, looked for again."""

from __future__ import annotations

import logging

import pytest

from autoscaler.contract import Configuration
from tests.doubles.kubernetes.fixtures import resources
from tests.doubles.kubernetes.running import Running
from tests.parameters import some_fast
from tests.unit.autoscaler.builders import PRICES, configuration
from tests.unit.autoscaler.platforms.ticks import BIG, TICK_S, F, G, Stories, hits

pytestmark = pytest.mark.timeout(600)


def without_right(double: Running) -> None:
    """The user may do all that the controller does but resize pods."""
    every = ("get", "list", "watch", "patch", "create", "update")
    rules = [
        {"apiGroups": ["", "apps"], "resources": ["pods", "deployments", "deployments/scale"], "verbs": list(every)}
    ]
    double.set(grants={"anonymous": rules})


def test_without_the_right_to_resize_limits_are_rolled_out_in_the_same_tick_and_it_is_reported_once(
    double: Running, stories: Stories, caplog: pytest.LogCaptureFixture
) -> None:
    story = stories(F, G)
    without_right(double)
    with caplog.at_level(logging.WARNING):
        report = story.desired({F: BIG, G: BIG})
        story.desired({F: configuration(memory_mb=512)})
        story.tick(20)
    assert set(report.applied) == {F, G} and not report.failures
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"]
    assert story.asked() == 1 and story.kinds() == [("m", "forbidden")] and story.count("forbidden", "m") == 1
    (reported,) = [record.message for record in caplog.records if "pods/resize" in record.message]
    assert "changed limits are rolled out" in reported


def without(double: Running, missing: str) -> None:
    """The user may do all that the controller does but patch this resource."""
    groups, every = ["", "apps"], ["pods", "pods/resize", "deployments", "deployments/scale"]
    written = [resource for resource in every if resource != missing]
    reads = {"apiGroups": groups, "resources": every, "verbs": ["get", "list", "watch"]}
    double.set(grants={"anonymous": [reads, {"apiGroups": groups, "resources": written, "verbs": ["patch"]}]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "desired"),
    some_fast([("deployments/scale", configuration(4)), ("deployments", BIG)], 1),
    ids=["replicas", "limits"],
)
def test_an_order_without_the_right_to_it_is_tried_again_after_growing_times(
    double: Running, stories: Stories, missing: str, desired: Configuration
) -> None:
    story, tries = stories(), []
    without(double, missing)
    first = story.desired({F: desired})
    assert f'cannot patch resource "{missing}"' in first.failures[F]
    for tick in range(1, 40):
        before = story.asked(f"patch {missing}")
        report = story.tick()
        assert story.kinds() == [(F, "forbidden")] and story.present() == configuration()
        if story.asked(f"patch {missing}") > before:
            tries.append(tick * TICK_S)
        else:
            assert hits(report) == ("platform: forbidden",) and not report.failures
    assert tries == pytest.approx([60, 180], abs=2 * TICK_S)
    double.set(grants=None)
    story.tick(49)
    assert story.present() == desired and story.kinds() == []


def test_within_the_tick_the_budget_of_what_there_is_no_right_to_goes_to_another(
    double: Running, stories: Stories
) -> None:
    replica_per_hour = (PRICES.cpu_core_s + 0.25 * PRICES.memory_gib_s) * 3600
    story = stories(F, G, budget_per_hour=3 * replica_per_hour)
    without(double, "deployments")
    report = story.desired({F: BIG, G: configuration(2)})
    assert report.applied == (G,) and set(report.failures) == {F} and story.present(G) == configuration(2)


def test_the_right_is_looked_for_again_after_a_while(double: Running, stories: Stories) -> None:
    story = stories()
    without_right(double)
    story.desired({F: configuration(memory_mb=512)})
    double.set(grants=None)
    story.clock.ahead_s += 600.0
    (before,) = double.pods(F)
    story.desired({F: BIG})
    (after,) = double.pods(F)
    assert resources(after)["limits"]["memory"] == "1024Mi" and story.kinds() == []
    assert after["metadata"]["name"] == before["metadata"]["name"]


def test_a_right_that_is_lost_leaves_no_replica_with_the_limits_of_an_old_template(
    double: Running, stories: Stories
) -> None:
    story = stories()
    story.desired({F: configuration(memory_mb=512)})
    without_right(double)
    story.desired({F: configuration(2, memory_mb=512)})
    story.tick(2)
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"] * 2
    assert story.kinds() == [("m", "forbidden")]
