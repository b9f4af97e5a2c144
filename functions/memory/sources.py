"""Where a region's bytes come from: another node's memory (``p2p-copy``), or disk (``disk-copy``).

Both take turns with everything else that uses the same link: a *link* has a rate, so that several machines can be
emulated on one machine, and measures what it really carried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httptools

from functions.dispatch.client import CONNECT_TIMEOUT_S, request_head
from functions.memory.regions import SourceError

Take = Callable[[memoryview], None]
"""Gets bytes in order; they are valid only until it returns."""

PIECE = 1 << 22
"""Bytes asked for at once: few enough round trips that a busy machine's waits between them do not count."""
RECEIVE_BYTES = 1 << 18
"""Bytes taken from a connection at once: they are digested and stored while the processor's cache has them."""
PIECE_TIMEOUT_S = 60.0
MAX_HEAD_BYTES = 16 * 1024
OFFSET = "x-smoe-offset"
DIGEST = "x-smoe-digest"
"""Header of a reply with bytes: the digest of the whole region (:attr:`functions.memory.regions.Filling.digest`)."""
TRIES = 3
_FIRST_WAIT_S = 0.05


@dataclass
class Line:
    """A line of ``bytes_per_s`` (0: as fast as it goes), and what it carried."""

    bytes_per_s: float = 0.0
    carried: int = 0
    busy_s: float = 0.0
    """Seconds in which it carried one transfer or more."""
    _free_s: float = 0.0
    _under_way: int = 0
    _since_s: float = 0.0

    async def carry(self, nbytes: int) -> None:
        """Wait for this line's turn for so many bytes."""
        if self.bytes_per_s:
            now_s = asyncio.get_running_loop().time()
            self._free_s = max(self._free_s, now_s) + nbytes / self.bytes_per_s
            await asyncio.sleep(max(0.0, self._free_s - now_s))

    def begin(self, now_s: float) -> None:
        """A transfer begins."""
        if not self._under_way:
            self._since_s = now_s
        self._under_way += 1

    def end(self, nbytes: int, now_s: float) -> None:
        """A transfer has ended, having carried so many bytes."""
        self.carried += nbytes
        self._under_way -= 1
        if not self._under_way:
            self.busy_s += now_s - self._since_s

    @property
    def measured(self) -> float | None:
        """Bytes a second over everything carried; None before anything was."""
        return self.carried / self.busy_s if self.busy_s else None


async def from_disk(path: Path, offset: int, line: Line, take: Take) -> None:
    """Hand the file's bytes from ``offset`` on to ``take``. Raises SourceError and what ``take`` raises."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    try:
        while piece := await asyncio.to_thread(os.pread, descriptor, PIECE, offset):
            await line.carry(len(piece))
            take(memoryview(piece))
            offset += len(piece)
        # The node's memory has it now; a second copy in the page cache helps no one.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise SourceError(f"{path} cannot be read from byte {offset} on: {error.strerror}") from error
    finally:
        os.close(descriptor)


async def from_peer(address: str, name: str, offset: int, nbytes: int, token: str, line: Line, take: Take) -> str:
    """Hand a region of the manager at ``address`` to ``take`` from ``offset`` on; returns the digest of the whole
    region as its holder has it. Raises SourceError and what ``take`` raises.

    A piece that stops is gone on with on a new connection, a bounded number of times.
    """
    peer = _Peer(address, name, token, take, offset)
    failures = 0
    try:
        while True:
            try:
                carried, digest = await peer.piece()
            except (OSError, TimeoutError) as error:
                failures += 1
                if failures == TRIES:
                    reason = str(error) or type(error).__name__
                    raise SourceError(
                        f"node at {address} did not send {name} from byte {peer.offset} on: {reason}"
                    ) from error
                peer.close()
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (failures - 1))
                continue
            failures = 0
            if not carried and peer.offset < nbytes:
                raise SourceError(f"node at {address} has only {peer.offset} of {nbytes} bytes of {name}")
            if peer.offset < nbytes:
                peer.ask()  # on its way while this one's time on the line passes
            await line.carry(carried)
            if peer.offset >= nbytes:
                return digest
    finally:
        peer.close()


class _Peer:
    """One region of another manager, piece by piece on one connection at a time."""

    def __init__(self, address: str, name: str, token: str, take: Take, offset: int) -> None:
        self.offset = offset
        """Where the next byte belongs."""
        self._address, self._name, self._token = address, name, token
        self._take = take
        self._replies: _Replies | None = None
        self._asked: asyncio.Future[_Head] | None = None

    def ask(self) -> None:
        """Send for the piece at ``offset`` on the connection that there is."""
        assert self._replies is not None
        headers = [(OFFSET, str(self.offset)), ("authorization", f"Bearer {self._token}")]
        head = request_head(f"/bytes/{self._name}", self._address, "application/octet-stream", 0, headers)
        self._asked = self._replies.ask(head)

    async def piece(self) -> tuple[int, str]:
        """The bytes of the piece at ``offset``, which went to ``take``, and the region's digest. Raises SourceError,
        OSError, TimeoutError."""
        async with asyncio.timeout(PIECE_TIMEOUT_S):
            if self._asked is None:
                await self._connect()
                self.ask()
            assert self._asked is not None
            head = await self._asked
        self._asked = None
        if head.status != 200:
            text = bytes(head.refusal[:200]).decode("utf-8", "replace")
            raise SourceError(f"node at {self._address} answered {head.status} for {self._name}: {text}")
        return head.nbytes, head.digest

    def close(self) -> None:
        """Let go of the connection; the next piece is asked for on another."""
        if self._replies is not None:
            self._replies.close()
        if self._asked is not None:
            self._asked.cancel()
        self._replies = self._asked = None

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, self._replies = await loop.create_connection(lambda: _Replies(self._taken), host.strip("[]"), int(port))

    def _taken(self, data: memoryview) -> None:
        self._take(data)
        self.offset += len(data)


@dataclass
class _Head:
    """The head of a reply, before its bytes come."""

    status: int = 0
    nbytes: int = 0
    digest: str = ""
    refusal: bytearray = field(default_factory=bytearray)
    """The body of a reply that brings no bytes of the region."""


class _Replies(asyncio.BufferedProtocol):
    """Replies on one connection, one asked for at a time. Bytes go on from the buffer they were received into."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[_Head] | None = None
        self._text = bytearray()
        """Text of the head, as far as it has come."""
        self._head: _Head | None = None
        self._left = 0

    def ask(self, request: bytes) -> asyncio.Future[_Head]:
        """Send a request; the future is done once its reply's body has been handed on."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            self._end(ConnectionError("the connection is closed"))
        else:
            self._transport.write(request)
        return self._waiter

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionError(f"the connection ended before the piece did ({error})"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._waiter is None or self._waiter.done():  # nothing was asked, or nobody waits any more
            self.close()
            return
        try:
            rest = self._buffer[:nbytes]
            if self._head is None:
                rest = self._in_head(rest)
            if self._head is not None:
                self._in_body(self._head, rest)
        except Exception as error:
            self._end(error)
            self.close()

    def _in_head(self, data: memoryview) -> memoryview:
        """Add to the head; what is left once it is complete."""
        before = len(self._text)
        self._text += data
        end = self._text.find(b"\r\n\r\n")
        if end < 0:
            if len(self._text) > MAX_HEAD_BYTES:
                raise ConnectionError(f"a head of more than {MAX_HEAD_BYTES} bytes came")
            return data[:0]
        self._head = _read_head(bytes(self._text[: end + 4]))
        self._left = self._head.nbytes
        self._text.clear()
        return data[end + 4 - before :]

    def _in_body(self, head: _Head, data: memoryview) -> None:
        if len(data) > self._left:
            raise ConnectionError("more came than was asked for")
        self._left -= len(data)
        if head.status != 200:
            head.refusal += data
        elif data:
            self._take(data)
        if not self._left:
            self._head, waiter, self._waiter = None, self._waiter, None
            if waiter is not None:
                waiter.set_result(head)

    def _end(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


def _read_head(text: bytes) -> _Head:
    """Raises ConnectionError where it is none of a manager's."""
    head = _Head()

    class Headers:
        def on_header(self, name: bytes, value: bytes) -> None:
            if name.lower() == b"content-length":
                head.nbytes = int(value)
            elif name.lower() == DIGEST.encode():
                head.digest = value.decode("latin-1")

    parser = httptools.HttpResponseParser(Headers())
    try:
        parser.feed_data(text)
        head.status = parser.get_status_code()
    except (httptools.HttpParserError, ValueError) as error:
        raise ConnectionError(f"the reply is not HTTP ({error})") from error
    return head
