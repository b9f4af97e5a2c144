"""A cluster that has not got what a resize or more replicas want: told once, planned with, tried again later."""

from __future__ import annotations

import pytest

from tests.doubles.kubernetes.errors import Refusal
from tests.doubles.kubernetes.fixtures import resources
from tests.doubles.kubernetes.functions import quota, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import PRICES, configuration
from tests.unit.autoscaler.platforms.ticks import BIG, TICK_S, F, G, Stories, hits

pytestmark = pytest.mark.timeout(600)


def test_a_resize_over_quota_is_asked_for_once_and_reported_until_it_is_asked_for_again(
    double: Running, stories: Stories
) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    first = story.desired({F: BIG})
    assert "exceeded quota: team" in first.failures[F]
    begun = len(writes(double))
    for _ in range(10):
        report = story.tick()
        assert hits(report) == ("platform: quota",) and not report.failures
        assert story.kinds() == [(F, "quota")]
    assert len(writes(double)) == begun and story.asked() == story.count("quota") == 1
    assert story.present() == configuration()


def test_each_try_that_is_refused_again_doubles_the_time_to_the_next(double: Running, stories: Stories) -> None:
    story, tries = stories(), []
    quota(double, **{"limits.memory": "512Mi"})
    story.desired({F: BIG})
    for tick in range(1, 40):
        before = story.asked()
        story.tick()
        if story.asked() > before:
            tries.append(tick * TICK_S)
    assert tries == pytest.approx([60, 180], abs=2 * TICK_S)


def test_once_the_quota_is_lifted_the_next_try_succeeds_and_nothing_is_reported_any_more(
    double: Running, stories: Stories
) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    story.desired({F: BIG})
    quota(double, **{"limits.memory": "4Gi"})
    story.tick(14)
    assert story.present() == BIG and story.kinds() == [] and story.platform.bounds() == {}


def test_another_change_that_fits_is_granted_while_the_first_is_held_back(double: Running, stories: Stories) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    story.desired({F: BIG})
    story.desired({F: configuration(memory_mb=512)})
    assert story.present() == configuration(memory_mb=512) and story.kinds() == [(F, "quota")]


def test_what_the_quota_has_enough_of_still_grows(double: Running, stories: Stories) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi", "limits.cpu": "8"})
    report = story.desired({F: configuration(memory_mb=1024, cpu_cores=2.0)})
    assert report.applied == (F,) and story.present() == configuration(cpu_cores=2.0)


def test_what_a_limit_range_forbids_is_asked_for_once(double: Running, stories: Stories) -> None:
    """Its words as in Kubernetes' plugin/pkg/admission/limitranger, which answers 403."""
    said = 'pods "p" is forbidden: maximum memory usage per Container is 512Mi, but limit is 1Gi'
    story = stories()
    double.set(refusals={("patch", "pods/resize"): Refusal(403, "Forbidden", said)})
    story.desired({F: BIG})
    begun = len(writes(double))
    report = story.tick(8)
    assert hits(report) == ("platform: quota",) and len(writes(double)) == begun and story.asked() == 1
    assert said in str(story.platform.conditions()[0])


def test_within_the_tick_the_budget_of_what_was_refused_goes_to_another(double: Running, stories: Stories) -> None:
    replica_per_hour = (PRICES.cpu_core_s + 0.25 * PRICES.memory_gib_s) * 3600
    story = stories(F, G, budget_per_hour=3 * replica_per_hour)
    quota(double, **{"limits.memory": "1Gi"})
    report = story.desired({F: BIG, G: configuration(2)})
    assert report.applied == (G,) and set(report.failures) == {F}
    assert (story.present(F), story.present(G)) == (configuration(), configuration(2))


def test_what_another_function_gives_back_ends_the_wait(double: Running, stories: Stories) -> None:
    story = stories(F, G)
    quota(double, **{"limits.memory": "1Gi"})
    story.desired({G: configuration(memory_mb=512)})
    story.desired({F: configuration(memory_mb=768)})
    story.desired({G: configuration()})
    assert story.present() == configuration()
    story.tick(2)
    assert story.present() == configuration(memory_mb=768) and story.count("quota") == 1


def test_new_replicas_over_quota_are_brought_in_line_with_one_try_a_hold(double: Running, stories: Stories) -> None:
    """They come as the template says, smaller than their function: growing them is what the quota refuses."""
    story = stories()
    quota(double, **{"limits.memory": "1280Mi"})
    story.desired({F: configuration(memory_mb=512)})
    story.desired({F: configuration(3, memory_mb=512)})
    tried = story.asked()
    story.tick(8)
    assert story.asked() == tried and story.kinds() == [(F, "quota")]
    quota(double, **{"limits.memory": "4Gi"})
    story.tick(8)
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"] * 3
    assert story.kinds() == []
