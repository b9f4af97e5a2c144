"""Where a region's bytes come from: another node's memory (``p2p-copy``), or disk (``disk-copy``).

Both take turns with everything else that uses the same link: a *link* has a rate, so that several machines can be
emulated on one machine, and measures what it really carried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from functions.dispatch.client import ConnectionPool, RawReply, TransportError, request_head
from functions.memory.regions import SourceError

Take = Callable[[memoryview], None]
"""Gets bytes in order; they are valid only until it returns."""

PIECE = 1 << 22
"""Bytes asked for at once: few enough round trips that a busy machine's waits between them do not count."""
PIECE_TIMEOUT_S = 60.0
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

    A piece that stops is asked for again on a new connection, a bounded number of times.
    """
    pool = ConnectionPool(address)

    def ask(offset: int) -> asyncio.Task[RawReply]:
        headers = [(OFFSET, str(offset)), ("authorization", f"Bearer {token}")]
        head = request_head(f"/bytes/{name}", address, "application/octet-stream", 0, headers)
        return asyncio.ensure_future(pool.call(head, (), PIECE_TIMEOUT_S))

    failures = 0
    asked = ask(offset)
    try:
        while True:
            try:
                reply = await asked
            except TransportError as error:
                failures += 1
                if failures == TRIES:
                    raise SourceError(
                        f"node at {address} did not send {name} from byte {offset} on: {error}"
                    ) from error
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (failures - 1))
                asked = ask(offset)
                continue
            failures = 0
            if reply.status != 200:
                text = bytes(reply.body[:200]).decode("utf-8", "replace")
                raise SourceError(f"node at {address} answered {reply.status} for {name}: {text}")
            offset += len(reply.body)
            if not reply.body and offset < nbytes:
                raise SourceError(f"node at {address} has only {offset} of {nbytes} bytes of {name}")
            if offset < nbytes:
                asked = ask(offset)  # on its way while this piece is stored and its time on the line passes
            take(memoryview(reply.body))
            await line.carry(len(reply.body))
            if offset >= nbytes:
                return reply.headers.get(DIGEST, "")
    finally:
        asked.cancel()
        pool.close()
