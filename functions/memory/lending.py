"""The socket on which a weights manager lends regions on GPUs to the workers of its node (``functions.device.leases``).

Only processes of the manager's own user are answered. What comes is bounded: the bytes of a request, the time it may
take, and the connections, each of which is a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from pathlib import Path

from functions.device import leases
from functions.device.leases import LeaseError
from functions.memory.device_regions import DeviceRegions, LendError
from functions.memory.regions import RegionError

log = logging.getLogger(__name__)

ASK_S = 5.0
"""Time in which a worker that has connected must have asked."""
MOST_LEASES = 400
"""Each takes two of the 1,024 descriptors that a process mostly may have."""
_NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.EPERM)
"""Errors of a kernel, or a sandbox, that lacks process descriptors (pidfd)."""
_AGAIN_S = 0.1


class Lending:
    """Serves ``device.sock`` of a node's memory folder. To be used inside a running event loop."""

    def __init__(self, folder: Path, devices: DeviceRegions, ask_s: float = ASK_S, most: int = MOST_LEASES) -> None:
        self._folder = folder
        self._devices = devices
        self._ask_s = ask_s
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._file: tuple[int, int] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to lend; a predecessor's socket is replaced. Raises OSError."""
        self._listener = leases.listen(self._folder)
        self._file = _identity(self._folder / leases.SOCKET)
        self._accepting = self._loop.create_task(self._accept(self._listener))
        self._watching = self._loop.create_task(self._devices.watch())

    async def drain(self, timeout_s: float) -> None:
        """Lend to nobody else, wait until nobody has anything, at most ``timeout_s``. A successor's socket stays."""
        listener, self._listener = self._listener, None
        if listener is None or self._accepting is None:
            return
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        listener.close()
        if _identity(self._folder / leases.SOCKET) == self._file:
            (self._folder / leases.SOCKET).unlink(missing_ok=True)
        if self._connections and timeout_s:
            await asyncio.wait(self._connections, timeout=timeout_s)

    async def close(self) -> None:
        """End every lease from this side: workers notice, and end. Nothing is freed: until they end, workers map it."""
        await self.drain(0)
        self._devices.close()
        ending = [task for task in (self._watching, *self._connections) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("a worker could not connect for a lease: %s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a lease failed", exc_info=error)

    async def _serve(self, connection: socket.socket) -> None:
        """One connection, from its request to the end of its lease."""
        with connection, contextlib.ExitStack() as held:
            try:
                if (process := _process(self._checked_peer(connection))) is not None:
                    held.callback(os.close, process)
                name, gpu = leases.asked(await self._request(connection))
                copy = await self._devices.lend(name, gpu)
            except (LeaseError, LendError, RegionError, OSError) as error:
                with contextlib.suppress(OSError):
                    await self._loop.sock_sendall(connection, leases.refuse(str(error)))
                return
            held.callback(self._devices.give_back, copy)
            with contextlib.suppress(OSError):  # a worker that is gone already is waited for as every other
                await self._loop.sock_sendall(connection, leases.lend(copy.handle, copy.nbytes))
            if not await self._let_go(connection):
                await self._process_end(process)

    def _checked_peer(self, connection: socket.socket) -> int:
        """The process id at the other end, which may ask. Raises LeaseError, OSError."""
        pid, uid = leases.peer(connection)
        if uid != os.geteuid():
            raise LeaseError("regions on GPUs are lent to processes of the weights manager's own user")
        if len(self._connections) > self._most:
            raise LeaseError(f"there are {self._most} leases already, which is the most")
        return pid

    async def _request(self, connection: socket.socket) -> bytes:
        """One line. Raises LeaseError, OSError."""
        line = b""
        try:
            async with asyncio.timeout(self._ask_s):
                while b"\n" not in line and len(line) <= leases.MAX_LINE:
                    piece = await self._loop.sock_recv(connection, leases.MAX_LINE + 1 - len(line))
                    if not piece:
                        raise LeaseError("the request ended before its line did")
                    line += piece
        except TimeoutError:
            raise LeaseError(f"no request came within {self._ask_s:g} s") from None
        return line

    async def _let_go(self, connection: socket.socket) -> bool:
        """Waits for the end of the connection; whether the worker reported that it maps nothing any more."""
        received = b""
        with contextlib.suppress(OSError):
            while piece := await self._loop.sock_recv(connection, 64):
                received = (received + piece)[-len(leases.DONE) :]
        return received == leases.DONE

    async def _process_end(self, process: int | None) -> None:
        if process is None:
            return
        ended = asyncio.Event()
        self._loop.add_reader(process, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(process)


def _process(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where it has, or where the kernel has none.
    Raises LeaseError where there is none to be had now."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise LeaseError(f"the end of process {pid} cannot be awaited: {error.strerror}") from error
        log.warning("ends of processes cannot be awaited here (%s): a lease ends with its connection", error)
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
