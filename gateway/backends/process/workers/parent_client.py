"""The gateway's side of the warm parent: starts it, asks for forks, hears of ends, notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.backends.process import kernel
from gateway.backends.process.workers import channel
from gateway.contract import BackendError

log = logging.getLogger(__name__)

_STOP_PATIENCE_S, _FORK_PATIENCE_S = 15.0, 30.0


@dataclass(frozen=True)
class Exit:
    """How a process ended: ``code`` when by itself, ``signal`` (not 0) when killed."""

    code: int
    signal: int

    def sentence(self) -> str:
        if self.signal:
            try:
                return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
            except ValueError:
                return f"killed by signal {self.signal}"
        return f"exited with code {self.code}"


@dataclass
class Forked:
    """A process of the warm parent, a blank until a message on ``line`` names what it is to become."""

    slot: str
    pid: int
    line: socket.socket


class WarmParentClient:
    """One life of the warm parent process. When it dies, the backend makes another."""

    def __init__(
        self,
        python: str,
        preload: tuple[str, ...],
        cgroups: tuple[Path, ...],
        memory: tuple[Path, ...],
        on_exit: Callable[[str, Exit], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._command = [python, "-m", "gateway.backends.process.workers.parent", "--gateway-pid", str(os.getpid())]
        self._command += [f"--preload={module}" for module in preload]
        self._command += [f"--cgroup={folder}" for folder in cgroups]
        self._command += [f"--memory={folder}" for folder in memory]
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._hello: asyncio.Future[int] | None = None
        self._forks: dict[str, asyncio.Future[int]] = {}
        self._groups: dict[str, int] = {}
        self.closing = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, timeout_s: float) -> None:
        """Start it and wait until it has imported everything. Raises BackendError."""
        loop = asyncio.get_running_loop()
        ours, theirs = channel.pair()
        ours.setblocking(False)
        with theirs:
            # Not in another thread: the parent asks for a signal at the death of the thread that made it.
            self._process = subprocess.Popen(
                [*self._command, f"--control={theirs.fileno()}"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=_environment(),
            )
        self._control = ours
        self._hello = loop.create_future()
        loop.add_reader(ours.fileno(), self._readable)
        try:
            threads = await asyncio.wait_for(asyncio.shield(self._hello), timeout_s)
        except TimeoutError:
            await self.close()
            raise BackendError(f"the warm parent did not finish its imports within {timeout_s:.0f} s") from None
        except BackendError:
            await self.close()
            raise
        if threads > 1:
            log.warning("the warm parent has %d threads after its imports; forking such a process is not safe", threads)

    async def fork(self, slot: str, join: list[Path], ending: Path | None = None) -> Forked:
        """Fork a blank that joins the cgroups whose ``cgroup.procs`` are given, and ``ending`` when it ends. Raises
        BackendError."""
        if self._control is None or self.closing:
            raise BackendError("the warm parent is not running")
        ours, theirs = channel.pair()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forks[slot] = future
        try:
            with theirs:
                paths = {"join": [str(path) for path in join], "ending": str(ending) if ending else ""}
                message = {"op": "fork", "slot": slot, **paths}
                channel.send(self._control, message, (theirs.fileno(),))
            pid = await asyncio.wait_for(future, _FORK_PATIENCE_S)
        except (channel.ChannelError, BlockingIOError, TimeoutError) as error:
            ours.close()
            raise BackendError(f"the warm parent could not fork: {type(error).__name__} {error}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            self._forks.pop(slot, None)
        ours.setblocking(False)
        return Forked(slot, pid, ours)

    def signal(self, slot: str, number: int, *, group: bool = False) -> None:
        """Signal one process; the parent does it, because only it knows that the number is still that process."""
        if self._control is None:
            return
        with contextlib.suppress(channel.ChannelClosedError, BlockingIOError):
            channel.send(self._control, {"op": "signal", "slot": slot, "signal": int(number), "group": group})

    async def close(self) -> None:
        """End it and everything it forked; returns when they are gone."""
        self.closing = True
        process = self._process
        if process is None:
            return
        self._drop_control()
        try:
            await asyncio.to_thread(process.wait, _STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self._kill_groups()

    def _readable(self) -> None:
        while self._control is not None:
            try:
                message, _ = channel.receive(self._control)
            except BlockingIOError:
                return
            except channel.ChannelError:
                self._lost()
                return
            self._handle(message)

    def _handle(self, message: channel.Message) -> None:
        event = message["event"]
        if event == "forked":
            self._groups[message["slot"]] = message["pid"]
            future = self._forks.get(message["slot"])
            if future and not future.done():
                future.set_result(message["pid"])
        elif event == "exit":
            self._groups.pop(message["slot"], None)
            self._on_exit(message["slot"], Exit(message["code"], message["signal"]))
        elif self._hello and not self._hello.done():
            if event == "hello":
                self._hello.set_result(message["threads"])
            else:
                self._hello.set_exception(BackendError(message["reason"]))

    def _lost(self) -> None:
        """The parent is gone. The kernel kills its children; what those started is killed by their groups."""
        self._drop_control()
        self._kill_groups()
        error = BackendError("the warm parent died")
        for future in [*self._forks.values(), *([self._hello] if self._hello else [])]:
            if not future.done():
                future.set_exception(error)
        if not self.closing:
            self.closing = True
            self._on_lost()

    def _kill_groups(self) -> None:
        for group in self._groups.values():
            kernel.kill_group(group)
        self._groups.clear()

    def _drop_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MALLOC_ARENA_MAX="2", TOKENIZERS_PARALLELISM="false")
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return environment
