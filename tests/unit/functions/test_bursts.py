"""The ingress activates standbys through the gateway: by one report, for which no request waits, whatever fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.ingress import bursts
from functions.ingress.bursts import BurstActivation, Gateway
from tests.unit.functions.conftest import turns

RULE = "standbys=2,headroom=1,spare=0,hold_s=100,look_back_s=1"


class FakeGateway:
    """Answers reports with the replicas of ``ready``, or with ``status``; holds answers back while ``gate`` is shut."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()
        self.heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the other side has closed
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            self.heads.append(head)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self.reports.append(json.loads(await reader.readexactly(length)))
            self.heard.set()
            await self.gate.wait()
            entries = {
                name: {"max_inflight": 1, "replicas": [self.replica(i) for i in range(count + 1)]}
                for name, count in self.reports[-1]["functions"].items()
            }
            body = json.dumps({"functions": entries}).encode() if self.status == 200 else b"no"
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (self.status, len(body)) + body)

    @staticmethod
    def replica(number: int) -> dict[str, str]:
        return {"id": str(number), "address": f"127.0.0.1:{number + 1}", "state": "ready"}


class Scene:
    """A dispatcher and burst activation for ``f`` and ``g``, before a fake gateway."""

    def __init__(self, gateway: FakeGateway, url: str, token: Path) -> None:
        loop = asyncio.get_running_loop()
        self.gateway = gateway
        self.dispatcher = Dispatcher(loop)
        self.bursts = BurstActivation(["f", "g"], self.dispatcher, Gateway(url, token, "openfaas-fn"), loop)
        self.table()

    def table(self, rule: str = RULE, g: str | None = None) -> None:
        """``g``: its own rule, where that is another."""
        first = (ReplicaAddress("0", "127.0.0.1:1"),)
        rules = {"f": rule, "g": g or rule, "other": rule}
        table = {name: FunctionReplicas(1, first, 1, text) for name, text in rules.items()}
        self.dispatcher.update(table)
        self.bursts.update(table)

    def measured(self, **seconds_per_token: float) -> None:
        self.bursts._meter.seconds_per_token = seconds_per_token

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.001)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running(tmp_path) as one:
        yield one


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Scene]:
    gateway, token = FakeGateway(), folder / "token"
    token.write_text("secret\n")
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    scene = Scene(gateway, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/system/replicas", token)
    task = asyncio.ensure_future(scene.bursts.run())
    try:
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        scene.bursts.close()
        scene.dispatcher.close()
        gateway.gate.set()
        server.close()
        await turns()


async def test_a_burst_opens_the_standbys_of_all_functions_by_one_report(scene: Scene) -> None:
    scene.measured(f=0.02, g=0.01)
    scene.bursts.arrived(300)  # six replicas' worth of f, three of g
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 3)
    assert [report["functions"] for report in scene.gateway.reports] == [{"f.openfaas-fn": 2, "g.openfaas-fn": 2}]
    assert len(scene.dispatcher.replicas("g")) == 3
    assert b"POST /system/replicas " in scene.gateway.heads[0] and b"Bearer secret" in scene.gateway.heads[0]
    (opening,) = scene.bursts.openings
    assert opening.functions == 2
    assert opening.open_s is not None and opening.open_s > 0 and opening.first_call_s is None


async def test_what_the_controller_says_a_token_costs_holds_without_and_in_place_of_a_measurement(scene: Scene) -> None:
    scene.table(f"{RULE},token_s=0.02", g=f"{RULE},token_s=0.01")
    assert len({rule for rule, _ in scene.bursts._levels.rules.values()}) == 1, "counted with those of another cost"
    scene.bursts.arrived(100)  # two replicas' worth of f, one of g
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 2)
    assert scene.gateway.reports[-1]["functions"] == {"f.openfaas-fn": 1}
    scene.table(f"{RULE},token_s=0.03", g=f"{RULE},token_s=0.01")
    scene.bursts.arrived(0)
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 3)


async def test_what_serves_a_request_sleeps_only_after_it(scene: Scene) -> None:
    """The rule comes while the request is under way, and lets replicas sleep after hardly any time."""
    reported = scene.gateway.reports
    with scene.bursts.serving(10):
        scene.table("standbys=0,sleep_s=0.01")
        await scene.until(lambda: bool(reported))
        assert reported[-1]["functions"] == {"f.openfaas-fn": 1, "g.openfaas-fn": 1}
        await asyncio.sleep(0.05)
        assert len(reported) == 1, "nothing has fallen asleep"
    await scene.until(lambda: reported[-1]["functions"] == {})


async def test_the_feed_of_a_gateway_that_was_not_asked_closes_nothing_that_another_one_has_activated(
    scene: Scene,
) -> None:
    addresses = [ReplicaAddress(str(number), f"127.0.0.1:{number + 1}") for number in range(3)]
    waiting = {"f": FunctionReplicas(1, (addresses[0],), 1, RULE, tuple(addresses[1:]))}
    assert scene.bursts.opened(waiting) == waiting
    scene.measured(f=0.002)
    scene.bursts.arrived(1000)  # two replicas' worth
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 2)
    opened = scene.bursts.opened(waiting)["f"]
    assert (opened.replicas, opened.standbys) == (tuple(addresses[:2]), (addresses[2],))
    sleeping = {"f": FunctionReplicas(1, (), 1, "standbys=0,sleep_s=9", tuple(addresses[:1]))}
    assert scene.bursts.opened(sleeping)["f"].replicas == (addresses[0],)


async def test_after_its_lease_a_report_opens_nothing_any_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (ReplicaAddress(str(number), f"127.0.0.1:{number + 1}") for number in range(2))
    waiting = {"f": FunctionReplicas(1, (first,), 1, RULE, (second,))}
    scene.measured(f=0.002)
    scene.bursts.arrived(1000)
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 2)
    scene.gateway.status = 503
    assert scene.bursts.opened(waiting)["f"].replicas == (first, second)
    monkeypatch.setattr(bursts, "LEASE_S", 0.0)
    assert scene.bursts.opened(waiting) == waiting


async def test_what_changes_during_a_report_goes_with_the_next_one(scene: Scene) -> None:
    scene.measured(f=0.02)
    scene.gateway.gate.clear()
    scene.bursts.arrived(90)
    await scene.gateway.heard.wait()
    scene.bursts.arrived(20)  # nothing waits, and nothing is sent meanwhile
    scene.measured(f=0.02, g=0.02)
    scene.bursts.arrived(20)
    await turns()
    assert len(scene.gateway.reports) == 1
    scene.gateway.gate.set()
    await scene.until(lambda: len(scene.gateway.reports) == 2 and len(scene.bursts.openings) == 2)
    assert [report["functions"] for report in scene.gateway.reports] == [
        {"f.openfaas-fn": 1},
        {"f.openfaas-fn": 2, "g.openfaas-fn": 2},
    ]


async def test_a_gateway_that_fails_is_asked_again_and_replicas_stay_as_they_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bursts, "RETRY_S", 0.01)
    scene.measured(f=0.02)
    scene.gateway.status = 500
    scene.bursts.arrived(300)
    await scene.until(lambda: len(scene.gateway.reports) >= 3)
    assert len(scene.dispatcher.replicas("f")) == 1
    assert [record.message for record in caplog.records if record.name == bursts.log.name] == [
        "standbys cannot be activated (it answered 500: no); requests are served without them"
    ]
    scene.gateway.status = 200
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 3)


async def test_a_gateway_that_does_not_answer_costs_one_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "RETRY_S", 0.01)
    monkeypatch.setattr(bursts, "DEADLINE_S", 0.05)
    scene.measured(f=0.02)
    scene.gateway.gate.clear()
    scene.bursts.arrived(300)
    await scene.until(lambda: len(scene.gateway.reports) >= 2)
    assert scene.gateway.reports[0] == scene.gateway.reports[1] and len(scene.dispatcher.replicas("f")) == 1
    scene.gateway.gate.set()
    await scene.until(lambda: len(scene.dispatcher.replicas("f")) == 3)


async def test_standbys_are_released_after_their_hold(scene: Scene) -> None:
    scene.table(RULE.replace("hold_s=100", "hold_s=0.05"))
    scene.measured(f=0.02)
    scene.bursts.arrived(300)
    await scene.until(lambda: len(scene.gateway.reports) == 2)
    assert scene.gateway.reports[-1]["functions"] == {}


async def test_a_report_is_repeated_within_its_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "LEASE_S", 0.03)
    scene.measured(f=0.02)
    scene.bursts.arrived(300)
    await scene.until(lambda: len(scene.gateway.reports) >= 3)
    assert len({json.dumps(report) for report in scene.gateway.reports}) == 1


async def test_a_rule_that_cannot_be_read_is_none_and_is_reported_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        scene.table("many")
    scene.measured(f=0.02)
    scene.bursts.arrived(300)
    assert sum("are not used: 'many'" in record.message for record in caplog.records) == 1
    await turns()
    assert not scene.gateway.reports


async def test_the_work_of_a_token_is_measured_from_busy_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(asyncio.get_running_loop())
    busy_s = {"f": 2.0, "g": 0.5}
    monkeypatch.setattr(dispatcher, "busy_s", lambda name: busy_s[name])
    meter = bursts.WorkMeter(dispatcher, busy_s, 0.0)
    meter.answered(100)
    meter.measure(1.0)
    assert meter.seconds_per_token == {}
    meter.measure(5.0)
    assert meter.seconds_per_token == pytest.approx({"f": 0.02, "g": 0.005})
    meter.measure(20.0)  # nothing was answered meanwhile
    assert meter.seconds_per_token == pytest.approx({"f": 0.02, "g": 0.005})
    busy_s["f"] = 6.0
    meter.answered(20)
    meter.measure(20.0)
    # 2 s for 100 tokens at a weight of 0.8 · 2, and 4 s for 20 at a weight of 4; "g" was not called
    assert meter.seconds_per_token == pytest.approx({"f": (1.6 * 2 + 4 * 4) / (1.6 * 100 + 4 * 20), "g": 0.005})


async def test_quiet_times_do_not_hide_what_a_token_costs_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below its CPU quota a call takes a fraction of its time in a burst."""
    dispatcher = Dispatcher(asyncio.get_running_loop())
    busy_s = {"f": 4.0}
    monkeypatch.setattr(dispatcher, "busy_s", lambda name: busy_s[name])
    meter = bursts.WorkMeter(dispatcher, busy_s, 0.0)
    meter.answered(100)
    meter.measure(5.0)
    for number in range(2, 8):
        busy_s["f"] += 0.01
        meter.answered(10)
        meter.measure(5.0 * number)
    assert meter.seconds_per_token["f"] == pytest.approx(0.04, rel=0.05)
