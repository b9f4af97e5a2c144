"""The page at ``/ui/``: who may see it, what it is given, and what a browser makes of it."""

from __future__ import annotations

import asyncio
import base64
import builtins
import json
import re
import struct
import time
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gateway.contract import FunctionState
from gateway.views import TYPES, Views
from tests.doubles.fake_backend import FakeBackend
from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.unit.autoscaler.servers import serve
from tests.unit.gateway.browser import CHROMIUM, browser
from tests.unit.gateway.gateways import Running, Starter
from tests.unit.gateway.view_document import document


class Placed(FakeBackend):
    """Replicas of a function are on nodes a, b, a, … in turn."""

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]:
        return [
            replace(one, replicas=tuple(replace(each, machine="ab"[at % 2]) for at, each in enumerate(one.replicas)))
            for one in super().list(namespace)
        ]


@pytest.mark.parametrize("name", TYPES)
async def test_every_file_is_served_to_those_who_know_the_password(running: Running, name: str) -> None:
    without = 200 if name in ("style.css", "icon.svg") else 401  # the login form has these, too
    assert (await running.call("GET", f"/ui/{name}")).status == without
    answer = await running.system("GET", f"/ui/{name}")
    assert (answer.status, answer.headers["content-type"]) == (200, TYPES[name])
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_page_runs_nothing_from_elsewhere_and_nothing_inline(running: Running) -> None:
    answer = await running.system("GET", "/ui/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|style=", answer.text)
    chat = await running.system("GET", "/ui/chat")
    assert chat.headers["content-security-policy"] == policy
    assert not re.search(r"<script[^>]*>[^<]|<style|\son\w+=|style=", chat.text)
    for name in ("page.js", "draw.js", "chat.js", "experts.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(",
            (await running.system("GET", f"/ui/{name}")).text,
        )


async def test_root_and_a_missing_slash_lead_to_the_page(running: Running) -> None:
    assert (await running.call("GET", "/")).headers["location"] == "/ui/"
    assert (await running.system("GET", "/ui")).headers["location"] == "/ui/"


async def test_nothing_of_the_page_can_be_written(running: Running) -> None:
    for target in ("/ui/", "/ui/page.js", "/ui/chat", "/system/view"):
        for method in ("POST", "PUT", "DELETE"):
            assert (await running.system(method, target)).status == 405


async def test_the_view_is_that_of_the_state_folder(start: Starter, tmp_path: Path) -> None:
    async with start() as running:
        assert (await running.system("GET", "/system/view")).json() == {"views": []}
    folder = tmp_path / "state" / "view"
    folder.mkdir()
    (folder / "minilm.json").write_text(json.dumps(document(100.0)))
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    async with start() as running:
        assert (await running.system("GET", "/system/view")).json() == {"views": [document(100.0)]}


async def test_of_several_controllers_the_one_that_leads_is_shown_and_the_silent_are_left_out(tmp_path: Path) -> None:
    def view(**more: Any) -> Any:
        return lambda *_: (200, json.dumps(document(**more)).encode())

    with serve(view(end_s=200.0, leads=False)) as standby, serve(view(end_s=100.0)) as leader:
        urls = [standby.url, leader.url, "http://127.0.0.1:9", "http://no-such-host.invalid:1"]
        (found,) = await Views(tmp_path, urls).read()
    assert (found["leads"], found["end_s"]) == (True, 100.0)


async def test_controllers_are_asked_once_however_many_look_on(tmp_path: Path) -> None:
    with serve(lambda *_: (200, json.dumps(document(1.0)).encode())) as controller:
        views = Views(tmp_path, [controller.url])
        answers = await asyncio.gather(*(views.read() for _ in range(20)))
    assert len(controller.seen) == 1 and all(len(one) == 1 for one in answers)


async def test_pipelines_of_one_name_in_two_namespaces_are_both_shown(tmp_path: Path) -> None:
    (tmp_path / "home.json").write_text(json.dumps(document(100.0)))
    with serve(lambda *_: (200, json.dumps(document(200.0, namespace="team-a")).encode())) as controller:
        views = await Views(tmp_path, [controller.url]).read()
    assert [(one.get("namespace"), one["end_s"]) for one in views] == [(None, 100.0), ("team-a", 200.0)]


@pytest.mark.parametrize("status", [404, 500])
async def test_a_controller_that_answers_an_error_has_no_view(tmp_path: Path, status: int) -> None:
    with serve(lambda *_: (status, b"{}")) as controller:
        assert await Views(tmp_path, [controller.url]).read() == []


GENERATION = {
    "schedule": "arrow",
    "ttft_s": 2.0,
    "tpot_s": 0.15,
    "flips": 7,
    "joining": 1,
    "moved": {"texts": 12, "bytes": 4096, "took_ms": 18.0},
    "flip_ms": [0.1] * 7,
    "instances": [
        {"instance": 1, "role": "decode", "running": 2, "queue": 0, "arriving": 1, "pages_used": 150, "pages": 200}
        | {"interval_s": 0.042},
        {"instance": 0, "role": "prefill", "running": 1, "queue": 3, "arriving": 0, "pages_used": 20, "pages": 200},
    ],
}
"""What an ingress of a decoder reports."""


async def deploy_ingress(running: Running, name: str, statistics: dict[str, Any]) -> list[str]:
    """An ingress that answers with ``statistics``; what it is asked for."""
    asked: list[str] = []

    async def answer(request: FakeRequest, connection: FakeConnection) -> None:
        asked.append(request.target)
        connection.write(reply(200, json.dumps(statistics).encode(), content_type="application/json"))

    await running.deploy(name, program=answer, labels={"smoe.pipeline": name, "smoe.nodes": "ingress"})
    return asked


async def test_the_instances_are_those_that_ingresses_of_decoders_report(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.views.FRESH_S", 0.0)
    encoder = await deploy_ingress(running, "encoder", {"activations": []})
    await deploy_ingress(running, "decoder", {"generation": GENERATION})
    await running.deploy("other")
    kept = {key: value for key, value in GENERATION.items() if key != "flip_ms"}
    for _ in range(3):
        answer = (await running.system("GET", "/system/instances")).json()
        assert answer == {"pipelines": [{**kept, "pipeline": "decoder", "namespace": "openfaas-fn"}]}
    assert encoder == ["/statistics"]  # an encoder is asked once


async def test_ingresses_are_shown_the_key_of_their_callers(running: Running) -> None:
    running.backend.caller_key = "right"
    shown: list[str | None] = []

    async def answer(request: FakeRequest, connection: FakeConnection) -> None:
        shown.append(request.headers.get("x-smoe-caller-key"))
        connection.write(reply(200, b"{}", content_type="application/json"))

    await running.deploy("decoder", program=answer, labels={"smoe.pipeline": "decoder", "smoe.nodes": "ingress"})
    await running.system("GET", "/system/instances")
    assert shown == ["right"]


async def test_all_replicas_of_an_ingress_are_asked_at_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.views.FRESH_S", 0.0)
    all_asked, asked = asyncio.Event(), 0

    async def answer(request: FakeRequest, connection: FakeConnection) -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            all_asked.set()
        await all_asked.wait()  # nobody answers before all were asked
        document = {"generation": {"instances": [], "of": connection.replica.id}}
        connection.write(reply(200, json.dumps(document).encode(), content_type="application/json"))

    await running.deploy("decoder", 3, program=answer, labels={"smoe.pipeline": "decoder", "smoe.nodes": "ingress"})
    (found,) = (await running.system("GET", "/system/instances")).json()["pipelines"]
    assert (found["of"], asked) == (running.replicas("decoder")[0].id, 3)


async def test_a_replica_that_sends_the_gateway_elsewhere_is_not_followed(running: Running) -> None:
    with serve(lambda *_: (200, json.dumps({"generation": GENERATION}).encode())) as elsewhere:

        async def answer(request: FakeRequest, connection: FakeConnection) -> None:
            connection.write(reply(307, b"", location=f"{elsewhere.url}/statistics"))

        await running.deploy("decoder", program=answer, labels={"smoe.pipeline": "decoder", "smoe.nodes": "ingress"})
        assert (await running.system("GET", "/system/instances")).json() == {"pipelines": []}
    assert not elsewhere.seen


async def browse(
    running: Running,
    folder: Path,
    size: str = "1440,1500",
    query: str = "",
    pipeline: str = "minilm",
    until: str = "document.querySelector('tbody tr')",
) -> tuple[str, Path]:
    """The page's DOM and picture once it shows ``pipeline``, after the login form."""
    width, height = map(int, size.split(","))
    picture, url = folder / "page.png", f"http://{running.address}/ui/{query}"
    async with browser(folder / "profile") as tab:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await tab.command("Emulation.setDeviceMetricsOverride", **screen)
        await tab.open(url)
        await tab.until("document.querySelector('[name=password]') !== null")
        password = running.credentials.password
        await tab.script(f"document.querySelector('[name=password]').value = {password!r}; document.forms[0].submit()")
        await tab.until("location.pathname === '/ui/'")
        await tab.open(url)
        await tab.until(f"document.getElementById('pipeline')?.textContent.trim() === {pipeline!r} && {until}")
        dom = await tab.script("document.documentElement.outerHTML")
        shot = await tab.command("Page.captureScreenshot", format="png")
        picture.write_bytes(base64.b64decode(shot["data"]))
    return str(dom), picture


def cells(dom: str, identity: str) -> list[list[str]]:
    """Text of a table's rows."""
    body = dom.partition(f'id="{identity}"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [[unescape(re.sub("<[^>]+>", "", one)) for one in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def shown(dom: str, identity: str) -> str:
    match = re.search(rf'<(\w+)[^>]*id="{identity}"[^>]*>(.*?)</\1>', dom, re.DOTALL)
    assert match is not None, identity
    return unescape(re.sub("<[^>]+>", "", match[2]))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
async def test_a_browser_shows_heat_map_configuration_latency_cost_and_decisions(
    start: Starter, tmp_path: Path
) -> None:
    costs = {"busy_per_hour": 0.41, "provisioned_per_hour": 15.234}
    problems = ["<b>target 10.0.0.1:8080</b> could not be scraped"]
    seen = document(time.time(), problems=problems, latency_p95_s=2.437, cost=costs)
    first, second = seen["decisions"][:2]
    first["target"] = {**first["present"], "burst": {"standbys": 4, "token_s": 0.01}}
    second["present"], second["target"] = (
        first["target"],
        {**first["present"], "burst": {"standbys": 4, "token_s": 0.02}},
    )
    seen["history"][50] |= {"p95_s": None, "in_flight": 63.0}
    seen["history"][90] |= {"p95_s": None, "in_flight": 0.0}
    folder = tmp_path / "state" / "view"
    folder.mkdir(parents=True)
    (folder / "minilm.json").write_text(json.dumps(seen))
    async with start() as running:
        for one in seen["nodes"]:
            labels = {"smoe.pipeline": "minilm", "smoe.nodes": one["node"]}
            replicas = one["configuration"]["replicas"]
            limits = {"memory": "256Mi", "cpu": "1500m"}
            await running.deploy(one["function"], replicas, labels=labels, limits=limits)
        filled = "document.getElementById('configuration')?.textContent.includes('1.50 cores')"
        dom, picture = await browse(running, tmp_path, until=filled)
    assert (shown(dom, "pipeline"), shown(dom, "state"), shown(dom, "policy")) == ("minilm", "live", "policy hpa")
    assert shown(dom, "slo") == "of 120 ms · 20 × the target"
    assert (shown(dom, "cost"), shown(dom, "busy")) == ("$15.2 an hour", "$0.410 busy")
    experts = re.findall(r'data-node="(expert-\d+-\d+)" style="background: rgb', dom)
    assert len(set(experts)) == 24
    assert len(re.findall(r'data-node="segment-\d+"', dom)) == 7
    decisions = cells(dom, "decisions")
    assert decisions[0][1:4] == [
        "minilm-expert-5-0",
        "replicas 2 → 4",
        "concurrency 1.31 over target 0.7",
    ]
    assert [row[2] for row in decisions[2:]] == ["activation of standbys", "standbys 0 → 4"]
    assert [row[5] for row in decisions] == ["applied", "failed", "applied", "applied"]
    configuration = {row[0]: row for row in cells(dom, "configuration")}
    assert len(configuration) == len(seen["nodes"])
    assert configuration["minilm-expert-0-0"][4:6] == ["256 MiB", "1.50 cores"]
    assert shown(dom, "notice") == "<b>target 10.0.0.1:8080</b> could not be scraped"
    assert re.search(r'id="machines" hidden', dom)
    assert re.findall(r'class="unanswered".*?<title>(.*?)</title>', dom) == ["no answer while 63 requests waited"]
    assert 'class="line"' in dom and 'class="slo"' in dom and 'class="over"' in dom
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (1440, 1500) and picture.stat().st_size > 50_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
async def test_the_chat_page_begins_with_a_decoder_and_states_where_there_is_none(
    running: Running, tmp_path: Path
) -> None:
    state = "document.getElementById('state')?.textContent"
    await running.deploy("encoder", labels={"smoe.pipeline": "encoder", "smoe.nodes": "ingress"})
    async with browser(tmp_path / "profile") as tab:
        await tab.open(f"http://{running.address}/ui/chat")
        await tab.until("document.querySelector('[name=password]') !== null")
        password = running.credentials.password
        await tab.script(f"document.querySelector('[name=password]').value = {password!r}; document.forms[0].submit()")
        await tab.until("location.pathname === '/ui/'")
        await tab.open(f"http://{running.address}/ui/chat")
        await tab.until(f"{state} === 'no decoder is deployed'")
        labels = {"smoe.pipeline": "writer", "smoe.nodes": "ingress"}
        await running.deploy("writer", labels=labels, annotations={"smoe.context": "64"})
        await tab.open(f"http://{running.address}/ui/chat")
        await tab.until(f"{state} === 'ready'")
        assert await tab.script("document.getElementById('model').value") == "writer"
        assert await tab.script("document.getElementById('model').length") == 2


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
async def test_without_a_controller_a_browser_still_shows_what_is_deployed_and_where(
    start: Starter, tmp_path: Path
) -> None:
    async with start(backend=Placed()) as running:
        for name in ("segment-0", "expert-0-0", "expert-0-1", "segment-1"):
            replicas = 3 if name == "expert-0-0" else 1
            await running.deploy(f"p-{name}", replicas, labels={"smoe.pipeline": "p", "smoe.nodes": name})
        await running.deploy("other", 4)
        dom, _ = await browse(running, tmp_path, "900,900", pipeline="p")
    assert (shown(dom, "pipeline"), shown(dom, "state")) == ("p", "no controller")
    assert cells(dom, "machine-table") == [["a", "4", "5", "0", "0"], ["b", "1", "1", "0", "0"]]
    assert sorted(row[0] for row in cells(dom, "configuration")) == [
        "p-expert-0-0",
        "p-expert-0-1",
        "p-segment-0",
        "p-segment-1",
    ]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
async def test_a_browser_shows_the_instances_of_a_decoder_with_role_queue_pages_and_flips(
    start: Starter, tmp_path: Path
) -> None:
    async with start() as running:
        await deploy_ingress(running, "p", {"generation": GENERATION})
        until = "!document.getElementById('instances').hidden"
        dom, _ = await browse(running, tmp_path, "900,900", pipeline="p", until=until)
    assert cells(dom, "instance-table") == [
        ["0", "prefill", "1", "3", "0", "10%", "–"],
        ["1", "decode", "2", "0", "1", "75%", "42 ms"],
    ]
    words = shown(dom, "schedule")
    assert words == "arrow for TTFT 2.00 s, TPOT 150 ms  ·  7 flips  ·  12 texts moved, 18 ms each  ·  1 joining"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.parametrize(
    ("query", "machines", "pipelines"),
    [
        ("?pipeline=p", [["a", "1", "1", "0", "0"]], ""),
        ("?pipeline=p&namespace=team-a", [["a", "1", "2", "0", "0"], ["b", "1", "2", "0", "0"]], "minilmp"),
    ],
    ids=["home", "a further namespace"],
)
async def test_a_browser_shows_one_namespace_and_counts_no_function_of_that_name_elsewhere(
    start: Starter, tmp_path: Path, query: str, machines: list[list[str]], pipelines: str
) -> None:
    folder = tmp_path / "state" / "view"
    folder.mkdir(parents=True)
    (folder / "minilm.json").write_text(json.dumps(document(time.time(), namespace="team-a")))
    async with start(backend=Placed(namespaces=("openfaas-fn", "team-a"))) as running:
        labels = {"smoe.pipeline": "p", "smoe.nodes": "expert-0-0"}
        await running.deploy("p-expert-0-0", 1, labels=labels)
        await running.deploy("p-expert-0-0", 4, labels=labels, namespace="team-a")
        filled = "[...document.querySelectorAll('#machine-table *')].some(one => one.textContent === 'a')"
        dom, _ = await browse(running, tmp_path, "900,900", query, "p", filled)
    assert (shown(dom, "pipeline"), shown(dom, "pipelines")) == ("p", pipelines)
    assert cells(dom, "machine-table") == machines
