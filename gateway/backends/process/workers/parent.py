"""The warm parent: ``python -m gateway.backends.process.workers.parent --control FD …``, started by the gateway only.

Imports what replicas need once, then forks a process for each ``fork`` message, reports every end, and kills all of
them when it is ordered to stop or the gateway is gone. Single-threaded, so that forking is safe.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time

from gateway.backends.process import kernel
from gateway.backends.process.workers import channel, child, guardian

_GUARDIAN_PATIENCE_S = 6.0


class WarmParent:
    """State of the parent process: the control socket, the guardian, and the processes by slot."""

    def __init__(self, control: socket.socket, cgroups: list[str], memory: list[str]) -> None:
        self._control = control
        self._cgroups = cgroups
        self._memory = memory
        self._slots: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._stopping = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._guardian_pipe = -1
        self._guardian_pid = -1

    def prepare(self) -> None:
        """Signals and the guardian; before anything large is imported."""
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._start_guardian()

    def run(self) -> None:
        """Serve until ordered to stop or until the gateway is gone; then end everything."""
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            while not self._stopping:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        self._on_message()
                    else:
                        with contextlib.suppress(BlockingIOError):
                            self._wake_read.recv(4096)
                self._reap()
        except channel.ChannelClosedError:
            pass
        finally:
            selector.close()
            self._end_everything()

    def _on_stop(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _on_message(self) -> None:
        message, descriptors = channel.receive(self._control)
        try:
            if message["op"] == "fork":
                self._fork(message["slot"], message["join"], message["ending"], descriptors[0])
            elif message["op"] == "signal":
                self._signal(message["slot"], message["signal"], group=message["group"])
            elif message["op"] == "stop":
                self._stopping = True
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, slot: str, join: list[str], ending: str, channel_descriptor: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            child.run(me, channel_descriptor, join, ending)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._slots[pid] = slot
        self._pids[slot] = pid
        self._notify_guardian(f"+{pid}")
        channel.send(self._control, {"event": "forked", "slot": slot, "pid": pid})

    def _signal(self, slot: str, number: int, *, group: bool) -> None:
        pid = self._pids.get(slot)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(pid, number)

    def _reap(self) -> None:
        """Report ended processes. The group is killed while the zombie still holds its number."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            kernel.kill_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid == self._guardian_pid:
                self._start_guardian()
                continue
            slot = self._slots.pop(ended.si_pid, None)
            if slot is None:
                continue
            del self._pids[slot]
            self._notify_guardian(f"-{ended.si_pid}")
            code = os.waitstatus_to_exitcode(status)
            channel.send(
                self._control,
                {"event": "exit", "slot": slot, "pid": ended.si_pid, "code": max(code, 0), "signal": max(-code, 0)},
            )

    def _start_guardian(self) -> None:
        if self._guardian_pipe >= 0:
            os.close(self._guardian_pipe)
        reading, self._guardian_pipe = os.pipe()
        self._guardian_pid = os.fork()
        if self._guardian_pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setpgid(0, 0)
                child.close_all_but(reading)
                guardian.watch(reading)
            finally:
                os._exit(0)
        os.close(reading)
        os.set_blocking(self._guardian_pipe, False)
        for path in self._cgroups:
            self._notify_guardian(f"@{path}")
        for path in self._memory:
            self._notify_guardian(f"#{path}")
        for pid in self._slots:
            self._notify_guardian(f"+{pid}")

    def _notify_guardian(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._guardian_pipe, line.encode() + b"\n")

    def _end_everything(self) -> None:
        for pid in self._slots:
            kernel.kill_group(pid)
        os.close(self._guardian_pipe)
        deadline = time.monotonic() + _GUARDIAN_PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)
            except ChildProcessError:
                return


def _preload(modules: list[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise SystemExit(f"the warm parent cannot import {module}: {type(error).__name__}: {error}") from error
    if used := used_gpu("/proc/self/fd"):
        raise SystemExit(
            f"one of the modules {', '.join(modules)} uses a GPU ({used} is open) when it is imported; such a process "
            "cannot be forked"
        )
    gc.collect()
    gc.freeze()
    gc.disable()


def used_gpu(descriptors: str) -> str:
    """The first of NVIDIA's device files that is open, by the links in ``descriptors``; empty where none is."""
    for name in os.listdir(descriptors):  # noqa: PTH208 (names only)
        with contextlib.suppress(OSError):
            if (target := os.readlink(f"{descriptors}/{name}")).startswith("/dev/nvidia"):  # noqa: PTH115
                return target
    return ""


def main() -> None:
    """Read the arguments, prepare, import, say hello, serve."""
    parser = argparse.ArgumentParser(description="Warm parent of function replicas; started by the gateway.")
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--gateway-pid", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--cgroup", action="append", default=[])
    parser.add_argument("--memory", action="append", default=[])
    arguments = parser.parse_args()
    kernel.die_with_parent(arguments.gateway_pid, signal.SIGTERM)
    kernel.name_process("smoe-parent")
    control = socket.socket(fileno=arguments.control)
    os.set_inheritable(arguments.control, False)
    parent = WarmParent(control, arguments.cgroup, arguments.memory)
    parent.prepare()
    try:
        _preload(arguments.preload)
    except SystemExit as error:
        channel.send(control, {"event": "failed", "reason": str(error)})
        raise
    with contextlib.suppress(channel.ChannelClosedError):
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (a count, no paths)
        channel.send(control, {"event": "hello", "threads": threads})
    parent.run()


if __name__ == "__main__":
    main()
