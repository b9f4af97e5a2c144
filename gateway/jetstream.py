"""``/async-function`` kept by a NATS server (JetStream): a call that was accepted outlives the gateway that took it,
and any copy of the gateway runs it.

At least once: a call is taken from the stream when it has been run and called back. Where its gateway ends before, it
is run again by another, so a function may see it twice. https://docs.nats.io/nats-concepts/jetstream
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

from gateway.asynchronous import AsyncCalls, Refusal
from gateway.calls import Call
from gateway.forwarding import Forwarder
from gateway.held import TooMuchHeldError
from gateway.metrics import GatewayMetrics

log = logging.getLogger(__name__)

STREAM = "smoe-async"
SUBJECT = "smoe.async.calls"
CONSUMER = "smoe-gateways"
ACK_WAIT_S = 30.0
"""Seconds without a report after which a gateway has lost the calls it was running to the others."""
ANSWER_S = 5.0
"""Seconds within which the server must answer."""
RETRY_S = 1.0
MAX_RUNS = 5
"""Deliveries of a call whose gateways end while they run it."""
_HEAD_BYTES = 128 * 1024
"""Room for what a message holds besides the body."""
_TROUBLE = (nats.errors.Error, TimeoutError, OSError)


class JetStreamQueue(AsyncCalls):
    """The stream of all gateways that are given the same ``url``. While the server is away nothing is accepted."""

    def __init__(
        self, forwarder: Forwarder, metrics: GatewayMetrics, *, url: str, size: int, workers: int, **more: Any
    ) -> None:
        super().__init__(forwarder, metrics, **more)
        parts = urlsplit(url)
        self._url, self._shown = url, f"{parts.hostname}:{parts.port or 4222}"
        self._size = size
        self._workers = workers
        self._client = Client()
        self._jetstream: JetStreamContext | None = None
        self._connecting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._busy: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = False
        self._trouble = ""

    @property
    def connected(self) -> bool:
        """Whether the server answers now, so that calls can be kept."""
        return self._jetstream is not None and self._client.is_connected

    async def start(self) -> None:
        """Returns at once; the server may come later."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def close(self, timeout_s: float) -> None:
        """Calls that are not done in time go to another gateway."""
        self._closing = True
        end_s = time.monotonic() + timeout_s
        idle = [task for task in self._tasks if task not in self._busy]
        for task in idle:
            task.cancel()
        await asyncio.gather(*idle, return_exceptions=True)
        if self._busy:
            await asyncio.wait(self._busy, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.callbacks.close(end_s - time.monotonic())
        if self._settling:
            await asyncio.wait(set(self._settling), timeout=ANSWER_S)
        if self._client.is_connected or self._client.is_reconnecting:
            with suppress(*_TROUBLE):
                await self._client.close()

    async def put(self, call: Call) -> Refusal | None:
        refused = self._refusal(call)
        if refused is not None:
            return refused
        if not self.connected:
            return 503, "asynchronous calls cannot be kept now: NATS does not answer; try again later"
        message = written(call)
        if len(message) > self._client.max_payload:
            room = max(0, self._client.max_payload - _HEAD_BYTES)
            return 413, f"the body of an asynchronous call may have {room} bytes where NATS keeps it"
        try:
            assert self._jetstream is not None
            with self._waiting.room() as second:  # a copy of the body
                second.take(len(message))
                await self._jetstream.publish(SUBJECT, message, timeout=ANSWER_S, stream=STREAM)
        except TooMuchHeldError:
            return 429, f"{self._waiting.taken} bytes of asynchronous calls are on their way to NATS; try again later"
        except APIError as error:
            full = error.description or ""
            if "maximum" in full:
                waiting = f"{self._waiting.most} bytes of" if "bytes" in full else str(self._size)
                return 429, f"{waiting} asynchronous calls are waiting; try again later"
            log.warning("NATS did not keep call %s: %s", call.call_id[:64], error)
            return 503, "asynchronous calls cannot be kept now: NATS refused it; try again later"
        except _TROUBLE as error:
            log.warning("NATS did not keep call %s: %s", call.call_id[:64], type(error).__name__)
            return 503, "asynchronous calls cannot be kept now: NATS does not answer; try again later"
        return None

    async def _work(self) -> None:
        while not self._closing:
            try:
                await self._follow(await self._subscription())
            except _TROUBLE as error:
                await self._heard(error)
                await asyncio.sleep(RETRY_S)

    async def _follow(self, subscription: JetStreamContext.PullSubscription) -> None:
        try:
            while not self._closing:
                with suppress(nats.errors.TimeoutError):  # nothing came
                    for message in await subscription.fetch(1, timeout=ANSWER_S):
                        await self._take(message)
        finally:  # else the server would send the next call here
            with suppress(*_TROUBLE):
                await subscription.unsubscribe()

    async def _subscription(self) -> JetStreamContext.PullSubscription:
        """This worker's subscription; stream and consumer, which all gateways share, are created where missing."""
        async with self._connecting:
            if not self._client.is_connected and not self._client.is_reconnecting:
                self._client = await nats.connect(
                    self._url,
                    connect_timeout=ANSWER_S,
                    max_reconnect_attempts=-1,
                    error_cb=self._heard,
                    reconnected_cb=self._again,
                )
            jetstream = self._client.jetstream(timeout=ANSWER_S)
            await self._bound(jetstream)
            self._jetstream = jetstream
            consumer = api.ConsumerConfig(ack_policy=api.AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S)
            subscription = await jetstream.pull_subscribe(SUBJECT, durable=CONSUMER, stream=STREAM, config=consumer)
            self._trouble = ""
            return subscription

    async def _bound(self, jetstream: JetStreamContext) -> None:
        """The stream, as bounded as a queue in memory; one that an earlier version made had no bound of bytes."""
        try:
            config = (await jetstream.stream_info(STREAM)).config
            if (config.max_bytes or 0) <= 0:
                await jetstream.update_stream(replace(config, max_bytes=self._waiting.most))
        except NotFoundError:
            await jetstream.add_stream(
                name=STREAM,
                subjects=[SUBJECT],
                retention=api.RetentionPolicy.WORK_QUEUE,
                discard=api.DiscardPolicy.NEW,
                max_msgs=self._size,
                max_bytes=self._waiting.most,
            )

    async def _again(self) -> None:
        log.info("NATS at %s answers again", self._shown)
        self._trouble = ""

    async def _heard(self, error: Exception) -> None:
        """Logged once, however often it is tried again."""
        said = str(error) or type(error).__name__
        if said != self._trouble:
            log.warning("asynchronous calls are not taken or run, NATS at %s: %s", self._shown, said)
        self._trouble = said

    async def _take(self, message: Msg) -> None:
        """Run one call. It is taken from the stream when that is over, and given back where this gateway must end."""
        try:
            call = read(message.data)
            message.data = b""  # held in the call alone, and no longer than it runs
        except ValueError as error:
            log.error("an asynchronous call at NATS cannot be read: %s", error)
            await message.term()
            return
        if message.metadata.num_delivered > MAX_RUNS:
            log.error("asynchronous call %s was given up: %d gateways ended within it", call.call_id[:64], MAX_RUNS)
            await message.term()
            return
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        self._metrics.async_pending += 1
        beating = asyncio.create_task(_beat(message))
        try:
            sending = await self._run(call)
        except asyncio.CancelledError:
            beating.cancel()
            with suppress(*_TROUBLE):
                await message.nak()
            raise
        except BaseException:
            beating.cancel()
            raise
        finally:
            self._metrics.async_pending -= 1
            self._busy.discard(task)
        if sending is None:
            beating.cancel()
            await message.ack()
            return
        settling = asyncio.create_task(_settle(message, sending, beating))  # this worker goes on meanwhile
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)


async def _settle(message: Msg, sending: asyncio.Task[None], beating: asyncio.Task[None]) -> None:
    """Take a call from the stream once its callback is over; given back where this gateway ends before."""
    await asyncio.wait({sending})
    beating.cancel()
    with suppress(*_TROUBLE):
        await (message.nak() if sending.cancelled() else message.ack())


async def _beat(message: Msg) -> None:
    """Report to the server that the call is being run."""
    while True:
        await asyncio.sleep(ACK_WAIT_S / 3)
        with suppress(*_TROUBLE):
            await message.in_progress()


def written(call: Call) -> bytes:
    """A call as a message: one line of JSON, then the body."""
    head = {
        "method": call.method,
        "function": call.function,
        "namespace": call.namespace,
        "path": call.path.decode("latin-1"),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in call.headers],
        "client": call.client,
        "call_id": call.call_id,
        "generated_id": call.generated_id,
        "started_ns": call.started_ns,
    }
    return json.dumps(head).encode() + b"\n" + call.body


def read(message: bytes) -> Call:
    """What :func:`written` wrote. Raises ValueError for anything else."""
    line, newline, body = message.partition(b"\n")
    try:
        head = json.loads(line)
        call = Call(
            str(head["method"]),
            str(head["function"]),
            str(head["namespace"]),
            head["path"].encode("latin-1"),
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]],
            body,
            length=len(body),
            client=str(head["client"]),
            call_id=str(head["call_id"]),
            started_ns=int(head["started_ns"]),
        )
        call.generated_id = bool(head["generated_id"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"it is no call ({type(error).__name__})") from error
    if not newline:
        raise ValueError("it is no call (no body)")
    return call
