"""Regions on GPUs: each is copied to a GPU once and lent to every worker that asks, for as long as workers map it.

The copy belongs to the manager: workers come and go without copying. Memory that is lent is never freed; memory that
nobody maps is freed when its region is released, and when another region needs the room, the one least recently lent
first.

CUDA's calls block, may hang, and belong to one thread: they are made in a thread of their own, one at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import mmap
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from functions.memory.regions import MemoryRoomError, Regions
from functions.serving.file_state import FileState, file_state

if TYPE_CHECKING:
    from functions.memory.cuda_memory import CudaMemory

log = logging.getLogger(__name__)

PIECE = 64 << 20
"""Bytes written to a GPU by one call."""
CALL_S = 60.0
"""A call of the driver that takes longer means that the GPU hangs; the first makes a context, which takes seconds."""
CHECK_S = 2.0
"""GPUs that hold regions are asked this often whether they are still there (why: ``functions.device.tensors``)."""
Found = TypeVar("Found")


class LendError(MemoryRoomError):
    """A region cannot be lent on a GPU; the message gives the reason, and the worker copies its weights itself."""


class DeviceFullError(LendError):
    """A GPU has no room left."""


@dataclass(eq=False)
class Copy:
    """A region on a GPU, or on its way there."""

    name: str
    gpu: str
    nbytes: int
    state: FileState
    leases: int = 0
    turn: int = 0
    """Grows with each lease: the smallest is the least recently lent."""
    wanted: bool = True
    """Its region is held still."""
    pointer: int = 0
    handle: bytes = b""
    coming: asyncio.Task[None] = field(init=False)


class DeviceRegions:
    """The regions of one node on its GPUs. ``limit_bytes`` bounds them on each GPU; 0 is no limit."""

    def __init__(
        self,
        regions: Regions,
        memory: CudaMemory,
        limit_bytes: int = 0,
        on_lost: Callable[[str], object] = log.critical,
        call_s: float = CALL_S,
    ) -> None:
        """``on_lost``: called with the reason when a GPU is gone or hangs. To be made inside a running event loop."""
        self._regions = regions
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._on_lost = on_lost
        self._call_s = call_s
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._copies: list[Copy] = []
        self._turns = itertools.count(1)
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def held(self) -> list[dict[str, Any]]:
        """What lies on which GPU, and how many leases there are of it."""
        return [
            {"name": copy.name, "gpu": copy.gpu, "bytes": copy.nbytes, "leases": copy.leases}
            for copy in self._copies
            if copy.pointer
        ]

    async def lend(self, name: str, gpu: str) -> Copy:
        """A lease of region ``name`` on ``gpu``, copied there if it is not; to be ended by :meth:`give_back`.

        Who asks while it comes waits for the same copy. Raises LendError, RegionError.
        """
        state = self._look(name)
        self.released(name, but=state)
        same = (
            copy for copy in self._copies if (copy.name, copy.gpu, copy.state) == (name, gpu, state) and copy.wanted
        )
        copy = next(same, None) or self._begin(name, gpu, state)
        copy.leases += 1
        copy.turn = next(self._turns)
        try:
            await asyncio.shield(copy.coming)
        except BaseException:
            self.give_back(copy)
            raise
        return copy

    def give_back(self, copy: Copy) -> None:
        """One lease less: whoever had it maps the memory no more."""
        copy.leases -= 1
        self._drop_if_useless(copy)

    def released(self, name: str, but: FileState | None = None) -> None:
        """The region is not held any more: its copies go with their last leases. ``but``: except those of this file."""
        for copy in [copy for copy in self._copies if copy.name == name and copy.state != but]:
            copy.wanted = False
            self._drop_if_useless(copy)

    async def watch(self) -> None:
        """Look after the GPUs until cancelled; one that is gone is reported once."""
        while True:
            await asyncio.sleep(CHECK_S)
            if not await self.is_well():
                return

    async def is_well(self) -> bool:
        """Whether every GPU in use answers; ``on_lost`` is called where not."""
        try:
            await self._call(self._memory.check)
        except Exception as error:
            self._lose(str(error))
            return False
        return True

    def close(self) -> None:
        """Take no more orders. Memory stays as it is: workers may map it until this process ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self, name: str) -> FileState:
        try:
            return file_state(self._regions.path(name))
        except OSError:
            raise LendError(f"{name[:80]} is not in the memory of this node") from None

    def _begin(self, name: str, gpu: str, state: FileState) -> Copy:
        if self._closed:
            raise LendError("the weights manager stops")
        copy = Copy(name, gpu, state[2], state)
        copy.coming = self._spawn(self._bring(copy))
        self._copies.append(copy)
        return copy

    async def _bring(self, copy: Copy) -> None:
        try:
            async with self._one_at_a_time:
                pointer = await self._allocated(copy)
                try:
                    await self._fill(copy, pointer)
                    copy.handle = await self._call(self._memory.handle, pointer)
                except Exception:
                    await self._free(pointer)
                    raise
                copy.pointer = pointer
        except BaseException:
            self._copies.remove(copy)
            raise
        log.info("%s is on %s: %d bytes", copy.name, copy.gpu, copy.nbytes)
        self._drop_if_useless(copy)

    async def _allocated(self, copy: Copy) -> int:
        """Room for ``copy``, others dropped for it where that helps. Raises LendError."""
        if self._limit_bytes:
            await self._drop_for(copy)
        while True:
            try:
                return await self._call(self._memory.allocate, copy.gpu, self._room(copy))
            except DeviceFullError:
                if not (unused := self._unused(copy.gpu)):
                    raise
                await self._drop(unused[0])

    async def _drop_for(self, copy: Copy) -> None:
        """Keep the limit. Everything is counted again after each wait: an unused copy may have been lent meanwhile."""
        room = self._room(copy)
        while True:
            unused = self._unused(copy.gpu)
            present = sum(self._room(one) for one in self._copies if one.gpu == copy.gpu and one.pointer)
            lent = present - sum(self._room(one) for one in unused)
            if lent + room > self._limit_bytes:
                raise DeviceFullError(
                    f"{copy.name} takes {room} bytes of {copy.gpu}; of the {self._limit_bytes} that the weights "
                    f"manager may use there, {lent} are lent"
                )
            if present + room <= self._limit_bytes:
                return
            await self._drop(unused[0])

    def _unused(self, gpu: str) -> list[Copy]:
        """Copies that nobody has, the least recently lent first."""
        return sorted(
            (one for one in self._copies if one.gpu == gpu and one.pointer and not one.leases),
            key=lambda one: one.turn,
        )

    def _room(self, copy: Copy) -> int:
        return -(-copy.nbytes // self._memory.granule) * self._memory.granule

    async def _fill(self, copy: Copy, pointer: int) -> None:
        try:
            with self._regions.path(copy.name).open("rb") as file:
                if file_state(file.fileno()) != copy.state:
                    raise LendError(f"{copy.name} was replaced while it was copied to {copy.gpu}")
                mapped = mmap.mmap(file.fileno(), copy.nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise LendError(f"{copy.name} could not be read: {error}") from error
        whole = memoryview(mapped)  # not closed by hand: a call that hangs may still read it
        for offset in range(0, copy.nbytes, PIECE):
            await self._call(self._memory.write, pointer, offset, whole[offset : offset + PIECE])

    def _drop_if_useless(self, copy: Copy) -> None:
        if not copy.wanted and not copy.leases and copy.pointer and copy in self._copies and not self._closed:
            self._spawn(self._drop(copy))
            self._copies.remove(copy)

    async def _drop(self, copy: Copy) -> None:
        if copy in self._copies:
            self._copies.remove(copy)
        await self._free(copy.pointer)
        log.info("%s is no longer on %s", copy.name, copy.gpu)

    async def _free(self, pointer: int) -> None:
        try:
            await self._call(self._memory.free, pointer)
        except LendError as error:
            log.error("memory of a GPU could not be given back: %s", error)

    async def _call(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """In the thread. Raises LendError; one that does not come back is a lost GPU."""
        if self._closed:
            raise LendError("the weights manager stops")
        try:
            return await asyncio.wait_for(self._loop.run_in_executor(self._thread, work, *arguments), self._call_s)
        except TimeoutError:
            reason = f"a GPU did not answer the weights manager within {self._call_s:g} s"
            self._lose(reason)
            raise LendError(reason) from None

    def _lose(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_lost(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # raised to those who wait for it
