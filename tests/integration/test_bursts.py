"""Standbys on a running pipeline: a burst has them serve calls, and they wait again after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from autoscaler.contract import Burst, Configuration
from autoscaler.platforms.openfaas import OpenFaasPlatform
from benchmarks.burst import activations
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TEXT = " ".join(["The courier asked about the price of fresh bread before the rain began."] * 4)


@pytest.fixture
def running(tmp_path: Path, minilm_pipeline: Path) -> Iterator[RunningPipeline]:
    settings = local_gateway(tmp_path / "state")
    settings.pipelines.mkdir(parents=True)
    (settings.pipelines / "minilm").symlink_to(minilm_pipeline)
    with running_pipeline(settings) as one:
        yield one


def until(what: str, holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.1)


def ask(running: RunningPipeline) -> int:
    return requests.post(running.url, json={"inputs": TEXT}, timeout=100).status_code


def test_a_burst_has_standbys_serve_calls_and_they_wait_again_after_it(running: RunningPipeline) -> None:
    """A token costs as much as was measured; with a headroom of thousands any request wants all standbys."""
    name = next(function for function in running.functions if "-expert-" in function)
    platform = OpenFaasPlatform(running.gateway.connect().url, running.manifest.name, running.gateway.auth)

    def states() -> list[str]:
        return sorted(one["state"] for one in running.client.replicas()[name])

    present = platform.configurations()[name]
    burst = Burst(2, headroom=1e4, hold_s=1.0)
    target = Configuration(
        present.memory_mb, present.cpu_cores, present.gpu_share, present.replicas, present.concurrency, burst
    )
    platform.apply(name, present, target)
    until("standbys wait", lambda: states() == ["ready", "standby", "standby"])
    assert platform.configurations()[name] == target

    with ThreadPoolExecutor(8) as clients:
        until("a call at an activated standby is answered", lambda: (
            set(clients.map(lambda _: ask(running), range(16))) == {200}
            and any(row["first_answer_s"] is not None for row in activations(running))
        ))  # fmt: skip
    until("standbys wait again", lambda: states() == ["ready", "standby", "standby"])
    assert ask(running) == 200

    asleep = replace(target, burst=Burst(1, hold_s=1.0, sleep_s=1.0))
    platform.apply(name, target, asleep)
    until("nothing runs", lambda: states() == ["standby", "standby"])
    assert platform.configurations()[name] == asleep
    until("a request finds one activated", lambda: ask(running) == 200 and "ready" in states())
    until("nothing runs again", lambda: states() == ["standby", "standby"])
