"""The metrics port, read by Prometheus' own parser, and the two pages that list where to scrape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.unit.gateway.client import ask, connect, request
from tests.unit.gateway.gateways import Running, Starter

F = "f.openfaas-fn"


async def samples(running: Running) -> dict[tuple[str, ...], float]:
    """Value by (name, label values in the order of their names)."""
    families = text_string_to_metric_families(await running.metrics())
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_calls_are_counted_by_code_with_their_time(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(418 if seen.target == "/tea" else 200))

    await running.deploy(program=program)
    for target in ("/function/f", "/function/f.openfaas-fn", "/function/f/tea", "/function/unknown"):
        await running.call("GET", target)
    values = await samples(running)
    calls = {key[1:]: value for key, value in values.items() if key[0] == "gateway_function_invocation_total"}
    assert calls == {("200", F): 2, ("418", F): 1}
    assert values["gateway_functions_seconds_count", "200", F] == 2
    assert 0 < values["gateway_functions_seconds_sum", "200", F] < 20
    assert values["gateway_functions_seconds_bucket", "418", F, "+Inf"] == 1
    assert values["gateway_function_invocation_started", F] == 3
    assert values["gateway_function_invocation_inflight", F] == 0


async def test_calls_in_flight_are_those_that_have_begun_and_not_ended(running: Running) -> None:
    gate = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
        await gate.wait()
        connection.write(b"b")

    await running.deploy(program=program)
    calls = [asyncio.create_task(running.call("GET", "/function/f")) for _ in range(3)]
    await running.until(lambda: running.replicas()[0].in_flight == 3)
    values = await samples(running)
    assert (values["gateway_function_invocation_inflight", F], values["gateway_function_invocation_started", F]) == (
        3,
        3,
    )
    assert ("gateway_function_invocation_total", "200", F) not in values
    gate.set()
    await asyncio.gather(*calls)
    await running.until(lambda: running.gateway.metrics.invocations[F] == 3)
    assert (await samples(running))["gateway_function_invocation_inflight", F] == 0


async def test_a_client_that_leaves_is_counted_as_such(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await connection.closed.wait()

    await running.deploy(program=program)
    _, writer = await connect(running.address)
    writer.write(request("GET", "/function/f"))
    await running.until(lambda: running.replicas()[0].in_flight == 1)
    writer.transport.abort()
    await running.until(lambda: running.gateway.metrics.invocations[F] == 1)
    values = await samples(running)
    assert values["gateway_function_invocation_total", "499", F] == 1
    assert values["gateway_function_invocation_inflight", F] == 0


async def test_replicas_limits_and_usage_are_shown(start: Starter) -> None:
    async with start(cpu_scale=0.25) as running:
        limits = {"cpu": "1500m", "memory": "128Mi"}
        await running.deploy(replicas=2, env_vars={"max_inflight": "7"}, limits=limits)
        await running.deploy("g", replicas=0)
        running.backend.hold_starts = True
        await running.backend.scale("f", "openfaas-fn", 3)
        await running.call("GET", "/function/f")
        values = await samples(running)
    assert values["gateway_service_count", F] == 3
    states = {key[2]: value for key, value in values.items() if key[:2] == ("smoe_function_replicas", F)}
    assert states == {"starting": 1, "ready": 2, "draining": 0}
    assert values["smoe_function_cpu_limit_cores", F] == 1.5
    assert values["smoe_function_memory_limit_bytes", F] == 128 << 20
    assert values["smoe_function_max_inflight", F] == 7
    assert ("smoe_function_gpu_share", F) not in values
    assert values["smoe_cpu_scale",] == 0.25
    cpu = [value for key, value in values.items() if key[0] == "smoe_replica_cpu_seconds_total"]
    assert sorted(cpu) == [0, 0, 0.001]
    assert values["smoe_replica_memory_bytes", F, "f-1"] == 1 << 20
    assert values["smoe_replica_start_seconds_count",] == 2
    assert values["gateway_service_count", "g.openfaas-fn"] == 0
    assert ("smoe_function_cpu_limit_cores", "g.openfaas-fn") not in values


async def test_repeats_and_restarts_are_counted(running: Running) -> None:
    await running.deploy(replicas=2)
    for replica in running.replicas():
        running.backend.kill("f", replica.id)
    assert (await running.call("GET", "/function/f")).status == 200
    values = await samples(running)
    assert values["smoe_gateway_repeats_total", F, "connect"] >= 1
    assert values["smoe_replica_restarts_total", F] >= 1
    assert ("smoe_gateway_repeats_total", F, "failed") not in values


async def test_the_metrics_port_has_metrics_and_health_and_nothing_else(running: Running) -> None:
    for target, status in (("/metrics", 200), ("/healthz", 200), ("/system/functions", 404), ("/function/f", 404)):
        assert (await ask(running.metrics_address, "GET", target)).status == status
    answer = await ask(running.metrics_address, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


# where to scrape, where to call


async def test_targets_are_the_gateway_and_ready_replicas_that_ask_for_it(running: Running) -> None:
    await running.deploy("shown", labels={"smoe.metrics": "true"})
    for name, labels in (("hidden", {}), ("refused", {"smoe.metrics": "false"})):
        await running.deploy(name, labels=labels)
    running.backend.hold_starts = True
    await running.backend.scale("shown", "openfaas-fn", 2)
    ready = running.replicas("shown")[0].state
    assert (await running.system("GET", "/system/targets")).json() == [
        {"targets": [running.metrics_address], "labels": {"job": "gateway"}},
        {
            "targets": [ready.address],
            "labels": {"job": "ingress", "function_name": "shown.openfaas-fn", "replica": "shown-1"},
        },
    ]


async def snapshots(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next snapshot of a followed feed: a chunk of HTTP that holds one line."""
    size = int(await reader.readuntil(b"\r\n"), 16)
    line = await reader.readexactly(size + 2)
    document = json.loads(line)
    assert isinstance(document, dict)
    return document


async def test_the_feed_reports_every_change_in_a_whole_snapshot(running: Running) -> None:
    await running.deploy(env_vars={"max_inflight": "4"})
    (replica,) = running.replicas()
    reader, writer = await connect(running.address)
    token = f"Bearer {running.credentials.feed_token}"
    writer.write(request("GET", "/system/replicas?follow=true", authorization=token))
    async with asyncio.timeout(100):
        await reader.readuntil(b"\r\n\r\n")
        first = await snapshots(reader)
        shown = [{"id": "f-1", "address": replica.state.address, "state": "ready"}]
        assert first["functions"] == {F: {"max_inflight": 4, "replicas": shown}}
        assert first == (await running.system("GET", "/system/replicas")).json()
        await running.deploy("g", replicas=0)
        await running.backend.scale("f", "openfaas-fn", 0)
        while (later := await snapshots(reader))["functions"].get(F, {}).get("replicas"):
            pass
    assert later["functions"] == {
        F: {"max_inflight": 4, "replicas": []},
        "g.openfaas-fn": {"max_inflight": 0, "replicas": []},
    }
    assert later["version"] > first["version"]
    writer.close()


async def test_the_minimum_is_the_label_s_and_one_without_it_and_nonsense_is_left_out(running: Running) -> None:
    label = "com.openfaas.scale.min"
    await running.deploy(labels={label: "3"})
    await running.deploy("plain")
    await running.deploy("odd", labels={label: "many"})
    found = {key[1:]: value for key, value in (await samples(running)).items() if "min_replicas" in key[0]}
    assert found == {(F,): 3, ("plain.openfaas-fn",): 1}
