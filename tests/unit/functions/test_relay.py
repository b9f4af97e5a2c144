"""The relaying stage on real servers: groups spread to siblings, each with its own end."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from functions.dispatch import client
from functions.serving import relay
from functions.serving.relay import Relay
from functions.serving.token_bound import TokenBound
from functions.wire import arrays, bundles
from functions.wire.bundles import Answer, gather_rows
from functions.wire.messages import Reply, Request, error_reply
from tests.unit.functions.conftest import Held, Running, Scripted, post

X = np.arange(12, dtype=np.float32).reshape(4, 3)
DEAD = "127.0.0.1:1"


def times(factor: float) -> Scripted:
    """An expert that multiplies."""

    def script(request: Request) -> Reply:
        return Reply(200, arrays.encode({"y": arrays.decode(request.body)["x"] * np.float32(factor)}))

    return Scripted(script)


async def worker(start: Any, inner: Any, key: str = "") -> Running:
    running: Running = await start(Relay(inner, asyncio.get_running_loop(), key), caller_key=key)
    return running


def message(targets: list[str], groups: list[list[int]], headers: str = "") -> bytes:
    tensors = gather_rows(X, [np.array(group, np.intp) for group in groups])
    line = f"X-Smoe-Groups: {','.join(targets)}\r\n{headers}"
    return post("/relay", b"".join(arrays.encode(tensors)), line)


async def ask(running: Running, targets: list[str], groups: list[list[int]], headers: str = "") -> list[Answer]:
    ((status, _, body),) = await running.send(message(targets, groups, headers))
    assert status == 200, body
    return bundles.parse(body, len(targets))


def outputs(answers: list[Answer]) -> list[np.ndarray]:
    return [arrays.decode(bytearray(answer.body))["y"] for answer in answers]


async def test_groups_are_served_by_the_worker_and_its_siblings(start: Any) -> None:
    head, sibling = await worker(start, times(2)), await worker(start, times(3))
    targets = ["/", f"{sibling.address}/", f"{sibling.address}/stage/expert-0-1"]
    own, other, third = outputs(await ask(head, targets, [[0, 1], [1, 3], [2]]))
    assert np.array_equal(own, X[[0, 1]] * 2)
    assert np.array_equal(other, X[[1, 3]] * 3)
    assert np.array_equal(third, X[[2]] * 3)


async def test_a_group_that_fails_leaves_the_others_alone(start: Any) -> None:
    busy = Scripted(lambda _: error_reply(429, "overloaded", "busy", platform=True))
    head, living, full = await worker(start, times(2)), await worker(start, times(3)), await start(busy)
    targets = [f"{DEAD}/", "/", f"{full.address}/", f"{living.address}/"]
    answers = await ask(head, targets, [[0], [1], [2], [3]])
    assert [answer.status for answer in answers] == [0, 200, 429, 200]
    assert np.array_equal(outputs([answers[3]])[0], X[[3]] * 3)


async def test_a_group_whose_sibling_s_machine_falls_silent_fails_at_once_and_alone(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.liveness, "silent_s", lambda _: 600.0)
    silent = await start(Held())
    head = await start(Relay(times(2), asyncio.get_running_loop(), "", silence_s=1e-3))
    answers = await asyncio.wait_for(ask(head, [f"{silent.address}/", "/"], [[0], [1]]), 50)
    assert [answer.status for answer in answers] == [0, 200]


async def test_the_time_left_and_the_id_travel_on(start: Any) -> None:
    sibling = times(1)
    head, running = await worker(start, times(1)), await start(sibling)
    headers = "X-Timeout-Ms: 200000\r\nX-Request-Id: abc\r\n"
    await ask(head, [f"{running.address}/"], [[0]], headers)
    assert sibling.seen[0].request_id == "abc"
    assert 100_000 < float(sibling.seen[0].headers["x-timeout-ms"]) <= 200_000


async def test_a_sibling_that_does_not_answer_in_time_is_a_504_of_its_own(start: Any) -> None:
    held = Held()
    head, slow = await worker(start, times(2)), await start(held)
    answers = await ask(head, ["/", f"{slow.address}/"], [[0], [1]], "X-Timeout-Ms: 60\r\n")
    assert [answer.status for answer in answers] == [200, 504]
    held.answer_all()


async def test_other_paths_are_the_applications(start: Any) -> None:
    head = await worker(start, times(2))
    ((status, _, body),) = await head.send(post("/", b"".join(arrays.encode({"x": X}))))
    assert status == 200
    assert np.array_equal(arrays.decode(bytearray(body))["y"], X * 2)


async def test_a_message_without_groups_is_answered_without_work(start: Any) -> None:
    inner = times(1)
    head = await worker(start, inner)
    ((status, _, body),) = await head.send(post("/relay", b"".join(arrays.encode({"x": X}))))
    assert (status, bundles.parse(body, 0), inner.seen) == (200, [], [])


async def test_a_worker_with_a_key_relays_for_nobody_without_it(start: Any) -> None:
    inner = times(2)
    head = await worker(start, inner, key="secret")
    for headers in ("", "X-Smoe-Caller-Key: other\r\n"):
        ((status, _, _),) = await head.send(message(["/"], [[0]], headers))
        assert status == 403
    assert inner.seen == []
    (own,) = outputs(await ask(head, ["/"], [[0]], "X-Smoe-Caller-Key: secret\r\n"))
    assert np.array_equal(own, X[[0]] * 2)


async def test_without_a_key_only_this_machine_is_called(start: Any) -> None:
    head = await worker(start, times(2))
    for target in ("192.0.2.1:80/", "example.org:80/"):
        ((status, _, body),) = await head.send(message([target], [[0]]))
        assert (status, b"without a key" in body) == (400, True)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /relay HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (post("/relay", b"nonsense"), 400),
        (post("/relay", b"".join(arrays.encode({"x": X})), "X-Smoe-Groups: /\r\n"), 400),
        (post("/relay", b"", "X-Smoe-Groups: /metrics\r\n"), 400),
    ],
)
async def test_bad_messages_are_refused(start: Any, data: bytes, status: int) -> None:
    ((found, _, _),) = await (await worker(start, times(2))).send(data)
    assert found == status


async def test_a_worker_takes_only_so_many_groups_at_once(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_FORWARDED", 3)
    held = Held()
    head = await worker(start, held)
    first = asyncio.ensure_future(ask(head, ["/", "/"], [[0], [1]]))
    await held.wait(2)
    ((status, headers, _),) = await head.send(message(["/", "/"], [[0], [1]]))
    assert (status, headers["retry-after"]) == (429, "1")
    held.answer_all()
    assert [answer.status for answer in await first] == [200, 200]
    second = asyncio.ensure_future(ask(head, ["/", "/"], [[0], [1]]))
    await held.wait(4)
    held.answer_all()
    await second


async def test_a_caller_that_leaves_ends_what_it_asked_for(start: Any) -> None:
    held = Held()
    head = await worker(start, held)
    _, writer = await asyncio.open_connection("127.0.0.1", head.port)
    writer.write(message(["/"], [[0]]))
    await held.wait(1)
    writer.close()
    async with asyncio.timeout(100):
        while head.server.in_flight:
            await asyncio.sleep(0)
    assert held.calls[0][0].abandoned


async def test_connections_to_siblings_are_bounded(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MAX_SIBLINGS", 2)
    application = Relay(times(1), asyncio.get_running_loop(), "")
    head = await start(application)
    siblings = [await start(times(1)) for _ in range(4)]
    for sibling in siblings:
        await ask(head, [f"{sibling.address}/"], [[0]])
    assert list(application._pools) == [sibling.address for sibling in siblings[2:]]


async def test_rows_that_a_message_names_many_times_are_counted_each_time(start: Any) -> None:
    inner = times(2)
    running = await start(Relay(inner, asyncio.get_running_loop(), "", TokenBound(10)))
    ((status, _, body),) = await running.send(message(["/", "/"], [[0] * 6, [1] * 5]))
    assert (status, inner.seen) == (413, [])
    assert b"the groups have 11 rows; this function takes at most 10" in body
    assert [answer.status for answer in await ask(running, ["/", "/"], [[0] * 5, [1] * 5])] == [200, 200]


async def test_rows_of_messages_under_way_are_bounded_together(start: Any) -> None:
    held = Held()
    running = await start(Relay(held, asyncio.get_running_loop(), "", TokenBound(10)))
    first = asyncio.ensure_future(running.send(message(["/"], [[0] * 6])))
    await held.wait(1)
    ((status, headers, _),) = await running.send(message(["/"], [[0] * 5]))
    assert (status, headers["retry-after"]) == (429, "1")
    held.answer_all()
    await first
    again = asyncio.ensure_future(running.send(message(["/"], [[0] * 10])))
    await held.wait(2)
    held.answer_all()
    assert (await again)[0][0] == 200
