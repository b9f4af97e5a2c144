"""Attacks that keep a gateway from serving others: memory, connections, slow clients and receivers, odd requests."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress

from gateway.memory import held_bytes_of, memory_bytes
from gateway.settings import GatewaySettings
from tests.attacks.target import ASYNC_QUEUE, Target

PATIENCE_S = 30.0
"""What others may wait meanwhile; the machine may be busy."""
BODY_BYTES = 3_900_000
Outcome = tuple[bool, str]

SMUGGLED = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
ODD = (
    b"POST /function/worker HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /function/worker HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 36\r\n\r\n",
    b"POST /function/worker HTTP/1.1\r\nhost: x\r\ncontent-length: +36\r\n\r\n",
    b"POST /function/worker HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n",
    b"POST /function/worker HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\nhost: x\n\n",
    b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
)


def healthy(target: Target) -> bool:
    """Whether others are served."""
    with suppress(OSError):
        return target.ask("GET", "/healthz", timeout_s=PATIENCE_S)[0] == 200
    return False


def requests_that_hide_another(target: Target, thorough: bool) -> Outcome:
    smuggled = 0
    for odd in ODD:
        answer = target.raw(odd + SMUGGLED, wait_s=2.0)
        smuggled += answer.count(b"HTTP/1.1 200")
    return smuggled == 0 and healthy(target), f"{len(ODD)} requests, {smuggled} hidden ones were answered"


def bodies_held(target: Target, thorough: bool) -> Outcome:
    """Bodies that stop just before their end."""
    before, limit = target.resident_bytes(), held_bytes_of(memory_bytes())
    count = (2 if thorough else 1.3) * limit // BODY_BYTES
    head = b"POST /function/worker HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (BODY_BYTES + 1)
    most = 0
    with ExitStack() as lines:
        for _ in range(int(count)):
            line = lines.enter_context(target.connect())
            with suppress(OSError):
                line.sendall(head + b"x" * BODY_BYTES)
            most = max(most, target.resident_bytes() - before)
        refused = target.ask("POST", "/function/worker", b"x" * BODY_BYTES)[0]
    end_s = time.monotonic() + PATIENCE_S
    while (status := target.ask("POST", "/function/worker", b"x")[0]) != 200 and time.monotonic() < end_s:
        time.sleep(0.1)
    words = f"{int(count)} bodies grew it by {most >> 20} MiB at most, one more got {refused}; afterwards {status}"
    return most < 1.05 * limit + (16 << 20) and status == 200, words


def connections_held(target: Target, thorough: bool) -> Outcome:
    """Connections that send nothing."""
    count = GatewaySettings.max_connections + 1000 if thorough else 500
    with ExitStack() as lines:
        for _ in range(count):
            lines.enter_context(target.connect())
        begun_s = time.monotonic()
        status = target.ask("GET", "/healthz", timeout_s=PATIENCE_S)[0]
        taken_s = time.monotonic() - begun_s
    end_s = time.monotonic() + PATIENCE_S
    while not (after := healthy(target)) and time.monotonic() < end_s:
        time.sleep(0.1)
    return status == 200 and after, f"{count} connections: {status} after {taken_s:.2f} s; served again afterwards"


def heads_that_trickle(target: Target, thorough: bool) -> Outcome:
    """Heads of which a byte comes now and then."""
    limit_s, count, fine = GatewaySettings.request_head_timeout_s, 1000 if thorough else 100, True
    with ExitStack() as lines:
        left = [lines.enter_context(target.connect()) for _ in range(count)]
        for line in left:
            line.setblocking(False)
            line.send(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        begun_s = time.monotonic()
        while left and time.monotonic() - begun_s < limit_s + PATIENCE_S:
            left = [line for line in left if _takes_more(line)]
            fine &= healthy(target)
            time.sleep(0.5)
    taken_s = time.monotonic() - begun_s
    return not left and fine and taken_s > 0.5 * limit_s, f"{count} heads, {len(left)} left after {taken_s:.0f} s"


def _takes_more(line: socket.socket) -> bool:
    """Whether a connection is neither closed nor answered, and took a byte more."""
    try:
        line.send(b"a")
        line.recv(1000)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def asynchronous_flood(target: Target, thorough: bool) -> Outcome:
    """More calls than the queue holds."""
    target.command("sleeper", "sleep 1", max_inflight="0")
    statuses = [target.ask("POST", "/async-function/sleeper", b"x")[0] for _ in range(3 * ASYNC_QUEUE)]
    target.client.remove("sleeper")
    held = set(statuses) <= {202, 429} and 429 in statuses and healthy(target)
    return held, f"{statuses.count(202)} taken, {statuses.count(429)} refused"


def callbacks_that_trickle(target: Target, thorough: bool) -> Outcome:
    """Many receivers that never end their answer, while others use the same queue and the control API."""
    good = target.receivers["good"]
    came = _called_back(target, good.address)[0]
    slow = [one for name, one in target.receivers.items() if name != "good"][: None if thorough else 10]
    for one in slow * 8:
        target.ask("POST", "/async-function/worker", b"x", x_callback_url=f"http://{one.address}/")
    slow[0].got.wait(PATIENCE_S)
    again, came_s = _called_back(target, good.address)
    new, new_s = _called_back(target, good.address.replace("127.0.0.1", "localhost"))
    begun_s = time.monotonic()
    scaled = target.system("POST", "/system/scale-functions", {"functions": {"worker": {"replicas": 1}}})
    words = (
        f"with {len(slow)} slow ones another's callback after {came_s:.2f} s, a new host's after {new_s:.2f} s, "
        f"scale-functions {scaled} after {time.monotonic() - begun_s:.2f} s"
    )
    return came and again and new and scaled == 202, words


def names_that_nobody_answers_for(target: Target, thorough: bool) -> Outcome:
    """Callbacks to many names of a domain; where the name server is silent they take their whole deadline."""
    count = 200 if thorough else 40
    for number in range(count):
        target.ask("POST", "/async-function/worker", b"x", x_callback_url=f"http://h{number}.smoe.invalid/")
    good = target.receivers["good"].address
    came, came_s = _called_back(target, good)
    named, named_s = _called_back(target, good.replace("127.0.0.1", "localhost"))
    words = f"with {count} names a callback to an address after {came_s:.2f} s, to a name after {named_s:.2f} s"
    return came and named, words


def _called_back(target: Target, address: str) -> tuple[bool, float]:
    """Whether the good receiver got a callback at this address, and after how many seconds."""
    good = target.receivers["good"]
    good.got.clear()
    begun_s = time.monotonic()
    while target.ask("POST", "/async-function/worker", b"x", x_callback_url=f"http://{address}/")[0] == 429:
        time.sleep(0.05)  # the queue is full for a moment
        if time.monotonic() - begun_s > PATIENCE_S:
            break
    return good.got.wait(PATIENCE_S), time.monotonic() - begun_s


def shutdown_while_callbacks_trickle(target: Target, thorough: bool) -> Outcome:
    """Ends the gateway: the last attack."""
    for _ in range(20):
        target.ask(
            "POST", "/async-function/worker", b"x", x_callback_url=f"http://{target.receivers['trickling'].address}/"
        )
    begun_s = time.monotonic()
    target.process.terminate()
    limit_s = 2 * GatewaySettings.drain_s + PATIENCE_S
    with suppress(Exception):
        target.process.wait(limit_s)
    return target.process.poll() == 0, f"ended after {time.monotonic() - begun_s:.1f} s with {target.process.poll()}"


ATTACKS = (
    requests_that_hide_another, bodies_held, connections_held, heads_that_trickle, callbacks_that_trickle,
    names_that_nobody_answers_for, asynchronous_flood, shutdown_while_callbacks_trickle,
)  # fmt: skip
