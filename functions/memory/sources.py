"""Where a region's bytes come from: another node's memory (``p2p-copy``), or disk (``disk-copy``).

Both take turns with everything else that uses the same line: a *line* has a rate, so that several nodes can be played
on one machine, and measures what it really carried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from functions.memory.regions import SourceError
from functions.shared.client import ConnectionPool, TransportError, request_head

PIECE = 1 << 22
"""Bytes asked for at once: few enough round trips that a busy machine's waits between them do not count."""
PIECE_TIMEOUT_S = 60.0
OFFSET = "x-smoe-offset"
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


async def from_disk(path: Path, offset: int, line: Line) -> AsyncGenerator[bytes]:
    """The file from ``offset`` on. Raises SourceError."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    try:
        while piece := await asyncio.to_thread(os.pread, descriptor, PIECE, offset):
            await line.carry(len(piece))
            yield piece
            offset += len(piece)
        # The node's memory has it now; a second copy in the page cache helps no one.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise SourceError(f"{path} cannot be read from byte {offset} on: {error.strerror}") from error
    finally:
        os.close(descriptor)


async def from_peer(address: str, name: str, offset: int, nbytes: int, token: str, line: Line) -> AsyncGenerator[bytes]:
    """A region of the manager at ``address`` from ``offset`` on, piece by piece. Raises SourceError.

    A piece that does not come is asked for again, a bounded number of times.
    """
    pool = ConnectionPool(address)
    coming = asyncio.ensure_future(_piece(pool, address, name, offset, token))
    try:
        while offset < nbytes:
            piece = await coming
            offset += len(piece)
            if offset < nbytes:  # on its way while this one is taken in
                coming = asyncio.ensure_future(_piece(pool, address, name, offset, token))
            await line.carry(len(piece))
            yield piece
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        pool.close()


async def _piece(pool: ConnectionPool, address: str, name: str, offset: int, token: str) -> bytes:
    headers = [(OFFSET, str(offset)), ("authorization", f"Bearer {token}")]
    head = request_head(f"/bytes/{name}", address, "application/octet-stream", 0, headers)
    for attempt in range(TRIES):
        try:
            reply = await pool.call(head, [], PIECE_TIMEOUT_S)
        except TransportError as error:
            if attempt == TRIES - 1:
                raise SourceError(f"node at {address} did not send {name} from byte {offset} on: {error}") from error
            await asyncio.sleep(_FIRST_WAIT_S * 2**attempt)
            continue
        if reply.status != 200 or not reply.body:
            text = bytes(reply.body[:200]).decode("utf-8", "replace")
            raise SourceError(f"node at {address} answered {reply.status} for {name}: {text}")
        return bytes(reply.body)
    raise AssertionError("unreachable")
