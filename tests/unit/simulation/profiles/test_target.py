"""One function under test: what is put, and what is said when it does not start."""

from __future__ import annotations

import time
from typing import Any

import pytest

from simulation.profiles.measure.target import Function, LogLine, Setting
from simulation.profiles.model.errors import MeasurementError
from tests.unit.simulation.profiles.conftest import FakeGateway

KILLED = "[gateway] replica killed because it was out of memory (its memory limit was reached)"


def deployment() -> dict[str, Any]:
    return {"service": "made-expert-0-0", "labels": {}, "envVars": {}, "limits": {}, "requests": {"memory": "1Gi"}}


def function(gateway: FakeGateway, setting: Setting | None = None) -> Function:
    return Function(gateway, deployment(), setting or Setting(0.25, 128, 4))


def test_limits_are_put_as_kubernetes_quantities(gateway: FakeGateway) -> None:
    function(gateway).start()
    assert gateway.puts[-1]["limits"] == {"cpu": "250000u", "memory": "128Mi"}
    assert gateway.puts[-1]["env"]["max_inflight"] == "4"


def test_a_resize_changes_limits_and_concurrency_only(gateway: FakeGateway) -> None:
    tested = function(gateway)
    tested.start()
    before = dict(gateway.deployed[tested.name])
    tested.resize(Setting(1.0, 256, 8))
    after = gateway.deployed[tested.name]
    assert {key for key in after if after[key] != before[key]} <= {"limits", "envVars", "requests"}
    assert gateway.puts[-1]["limits"] == {"cpu": "1000000u", "memory": "256Mi"}


def test_the_same_setting_is_not_put_again(gateway: FakeGateway) -> None:
    tested = function(gateway)
    tested.start()
    tested.resize(Setting(0.25, 128, 4))
    assert len(gateway.puts) == 1


def test_a_restart_ends_the_replica_first(gateway: FakeGateway) -> None:
    tested = function(gateway)
    tested.start()
    tested.restart(Setting(1.0, 64, 1))
    assert gateway.counts[tested.name] == 1
    assert gateway.puts[-1]["limits"]["memory"] == "64Mi"


def test_the_given_deployment_is_left_as_it_is(gateway: FakeGateway) -> None:
    given = deployment()
    Function(gateway, given, Setting(1.0, 64, 1)).start()
    assert given == deployment()


def test_a_replica_killed_for_its_memory_is_reported_at_once(gateway: FakeGateway) -> None:
    gateway.ready = False
    tested = function(gateway)
    gateway.lines = [LogLine(time.time() + 1, KILLED)]
    with pytest.raises(MeasurementError, match="no ready replica under Setting"):
        tested.start(timeout_s=60)
    assert tested.killed_for_memory()


def test_deaths_before_the_restart_do_not_count(gateway: FakeGateway) -> None:
    tested = function(gateway)
    tested.start()
    gateway.lines = [LogLine(time.time() - 5, KILLED)]
    assert not tested.killed_for_memory()


def test_a_replica_that_never_starts_is_reported_with_its_log(gateway: FakeGateway) -> None:
    gateway.ready = False
    tested = function(gateway)
    gateway.lines = [LogLine(time.time() + 1, "error: no such file")]
    with pytest.raises(MeasurementError, match="no such file"):
        tested.start(timeout_s=0)
