"""Resizes that kubelets try in vain, on the API double: taken back, held, and not paid for."""

from __future__ import annotations

import pytest

from autoscaler.prices import function_cost
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import PRICES, configuration
from tests.unit.autoscaler.platforms.ticks import TICK_S, F, Stories, hits

SMALL = configuration(memory_mb=128)


def limits_of_pods(double: Running) -> list[str]:
    return [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in double.pods(F)]


def test_a_resize_that_fails_is_taken_back_held_and_tried_again_later(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.set_resizing("failed"))
    story.desired({F: SMALL})
    assert story.kinds() == [(F, "resize failed")] and story.present() == SMALL
    story.tick(8)
    assert story.present() == configuration() and limits_of_pods(double) == ["256Mi"]
    begun = story.asked()
    report = story.tick(5)
    assert hits(report) == ("platform: resize failed",) and story.asked() == begun, "it is held"
    double.do(lambda: double.cluster.set_resizing("done"))
    story.tick(14)
    assert story.present() == SMALL and story.kinds() == []


def test_more_memory_than_the_failed_order_asked_for_may_be_had_at_once(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.set_resizing("failed"))
    story.desired({F: SMALL})
    story.tick(8)
    double.do(lambda: double.cluster.set_resizing("done"))
    story.desired({F: configuration(memory_mb=192)})
    assert story.present() == configuration(memory_mb=192)


def test_what_is_paid_for_is_what_runs_and_not_what_was_ordered(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.set_resizing("failed"))
    story.desired({F: SMALL})
    report = story.tick()
    row = next(node for node in report.observation.nodes if node.function == F)
    assert row.configuration == SMALL, "what was ordered"
    paid = function_cost([row._replace(configuration=configuration())], TICK_S, PRICES)
    assert report.cost_by_node[row.node].provisioned == pytest.approx(paid.provisioned)
