"""Standbys in the report: those that took calls are replicas at work, and another cost of a token is no change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.changes import describe_change
from autoscaler.contract import Burst, Configuration
from smoe.report.log import at_work, restates

LIMITS = {"memory_mb": 128, "cpu_cores": 1.0, "gpu_share": 0.0, "concurrency": 8}
ROW: dict[str, Any] = {"start_s": 10.0, "end_s": 12.0, "replicas": 2, "ready_replicas": 2, "burst": None, **LIMITS}
ASLEEP = {"standbys": 0, "sleep_s": 2.0}
BEFORE = Configuration(128, 1.0, 0.0, 2, 8, Burst(3, token_s=0.002))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"activated_s": None}, 2),
        ({"activated_s": 3.8}, 4),
        ({"activated_s": 3.8, "burst": ASLEEP}, 2),
        ({"activated_s": None, "replicas": None, "ready_replicas": None}, None),
    ],
)
def test_woken_standbys_count_once(changes: dict[str, Any], expected: int | None) -> None:
    assert at_work(ROW | changes) == expected


def test_another_cost_of_a_token_is_described_and_is_no_change() -> None:
    after = replace(BEFORE, burst=Burst(3, token_s=0.003))
    assert restates(BEFORE, after) and not restates(BEFORE, replace(after, replicas=3))
    assert not restates(replace(BEFORE, burst=None), after)
    assert describe_change(BEFORE, after) == "a token's cost 2 ms → 3 ms of a replica"
    assert describe_change(BEFORE, replace(BEFORE, burst=replace(BEFORE.burst, hold_s=9))) == "activation of standbys"
