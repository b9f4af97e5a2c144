"""The OpenFaaS adapter against the real embedded gateway: what the small server of the contract suite only plays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Burst, Configuration, Decision
from autoscaler.errors import FunctionGoneError, PlatformError
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.state.readings import Series
from gateway.client.state import read_gateway_address, read_password
from smoe.lifecycle import GatewaySettings, start_gateway, stop_process
from tests.unit.autoscaler.builders import configuration

pytestmark = pytest.mark.slow
FUNCTION = "m-expert-0-0"


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[str, tuple[str, str]]]:
    """A gateway with two functions of pipeline ``m``: programs run per call, with limits."""
    state = Path(tempfile.mkdtemp(prefix="smoe-contract-"))
    process = start_gateway(GatewaySettings(state, port=0, metrics_port=0), detach=False)
    try:
        url, auth = read_gateway_address(state), ("admin", read_password(state))
        for name in (FUNCTION, "m-expert-0-1"):
            body: dict[str, Any] = {
                "service": name,
                "image": "unknown/program",
                "envProcess": "cat",
                "envVars": {"max_inflight": "4", "kept": "yes"},
                "labels": {"smoe.pipeline": "m", "com.openfaas.scale.max": "5"},
                "limits": {"memory": "256Mi", "cpu": "1000m"},
                "requests": {"memory": "256Mi", "cpu": "50m"},
            }
            reply = requests.post(f"{url}/system/functions", json=body, auth=auth, timeout=100)
            assert reply.status_code == 202, reply.text
        yield url, auth
    finally:
        stop_process(process)
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def platform(gateway: tuple[str, tuple[str, str]]) -> Iterator[OpenFaasPlatform]:
    platform = OpenFaasPlatform(gateway[0], "m", gateway[1])
    yield platform
    platform.apply(FUNCTION, platform.configurations()[FUNCTION], configuration())


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(configuration(3), id="replicas"),
        pytest.param(configuration(memory_mb=512, cpu_cores=0.5, concurrency=9), id="limits"),
        pytest.param(configuration(2, memory_mb=128, concurrency=1), id="both"),
        pytest.param(configuration(0), id="to zero"),
        pytest.param(configuration(burst=Burst(2, hold_s=3.0)), id="standbys"),
    ],
)
def test_a_change_shows_in_the_next_list(platform: OpenFaasPlatform, target: Configuration) -> None:
    platform.apply(FUNCTION, configuration(), target)
    assert platform.configurations() == {FUNCTION: target, "m-expert-0-1": configuration()}


def test_an_update_keeps_the_rest_of_the_deployment(
    platform: OpenFaasPlatform, gateway: tuple[str, tuple[str, str]]
) -> None:
    url, auth = gateway

    def status() -> dict[str, Any]:
        found: dict[str, Any] = requests.get(f"{url}/system/function/{FUNCTION}", auth=auth, timeout=100).json()
        return {key: found.get(key) for key in ("image", "envProcess", "labels", "annotations", "createdAt")}

    before = status()
    platform.apply(FUNCTION, configuration(), configuration(memory_mb=512, concurrency=2))
    assert status() == before


def test_more_replicas_than_the_function_s_label_allows_are_not_called_applied(platform: OpenFaasPlatform) -> None:
    desired = configuration(8)
    result = apply(platform, [Decision(FUNCTION, FUNCTION, configuration(), desired, desired, "")], lambda _: None)
    assert result.applied == [] and "but it has 5 replicas" in result.failures[FUNCTION]


def test_what_does_not_exist_and_what_is_not_allowed_are_named_errors(platform: OpenFaasPlatform) -> None:
    with pytest.raises(FunctionGoneError):
        platform.apply("m-expert-9-9", configuration(), configuration(2))
    with pytest.raises(PlatformError, match="was answered 400"):
        platform.apply(FUNCTION, configuration(), configuration(cpu_cores=0.0, gpu_share=1.0))
    assert platform.configurations()[FUNCTION] == configuration()


def test_the_gateway_s_metrics_are_those_the_monitor_reads(gateway: tuple[str, tuple[str, str]]) -> None:
    """Its configuration gauges tell what the list tells; without an ingress the window is stale and says so."""
    source = ScrapeSource(*gateway)
    source.read(100.0, 5.0)
    seen = source.read(105.0, 5.0)
    assert seen.stale and "there are none of ingress" in seen.problems[-1]
    key = f"{FUNCTION}.openfaas-fn"
    assert seen.value(Series.REPLICAS_WANTED, key) == 1 and seen.value(Series.MAX_INFLIGHT, key) == 4
    assert seen.value(Series.CPU_LIMIT_CORES, key) == 1 and seen.value(Series.MEMORY_LIMIT_BYTES, key) == 256 * 2**20
    assert seen.value(Series.CPU_SCALE) == 1 and seen.value(Series.REPLICAS_BY_STATE, key, "ready") is not None
