"""What a forked process does: wait as a blank until a message names what to become, then run the image's entry.

An entry is ``function(environ, listener, ready)``: it serves on ``listener``, calls ``ready()`` once it can, and
returns after SIGTERM when everything in flight is answered. A blank may get an order to prepare first and is a standby
then: the entry's module may offer ``prepare(environ)``, which does ahead what does not depend on the function (an event
loop, the pipeline's description, memory that would be touched first under load) and returns the rest of the entry.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from gateway.backends.process import kernel
from gateway.backends.process.secret import mount as secret_mount
from gateway.backends.process.workers import channel

Entry = Callable[[Mapping[str, str], socket.socket, Callable[[], None]], None]

_RESET_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT)


def run(parent_pid: int, channel_descriptor: int, join: list[str], ending: str) -> NoReturn:
    """Body of the forked process. Never returns, whatever happens. ``join``, ``ending``: files of cgroups to enter now,
    and (where not empty) at the end.
    """
    code, leaving = 1, -1
    try:
        kernel.die_with_parent(parent_pid)
        _start_clean(channel_descriptor, join)
        leaving = os.open(ending, os.O_WRONLY) if ending else -1  # now: what it becomes may not be allowed to
        code = _become(socket.socket(fileno=channel_descriptor), parent_pid)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(leaving, b"0")
        os._exit(code)


def _start_clean(channel_descriptor: int, join: list[str]) -> None:
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    close_all_but(channel_descriptor)
    for path in join:
        _enter(path)
    kernel.name_process("smoe-blank")


def _enter(path: str) -> None:
    """Join the cgroup of a ``cgroup.procs`` file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def close_all_but(kept: int) -> None:
    """Close every descriptor above stderr except one."""
    os.closerange(3, kept)
    os.closerange(kept + 1, max(kept + 1, _highest_descriptor() + 1))


def _highest_descriptor() -> int:
    return max((int(name) for name in os.listdir("/proc/self/fd")), default=2)  # noqa: PTH208 (names only)


def _become(line: socket.socket, parent_pid: int) -> int:
    """Wait for the assignment, turn into that replica, run its entry. Returns the exit code."""
    entry: Entry | None = None
    try:
        message, descriptors = channel.receive(line)
        while "prepare" in message:
            entry = _prepare(message["prepare"])
            kernel.name_process("smoe-standby")
            channel.send(line, {"event": "prepared"})
            message, descriptors = channel.receive(line)
    except channel.ChannelClosedError:
        return 0
    listener_descriptor, log_descriptor = descriptors
    os.dup2(log_descriptor, 1)
    os.dup2(log_descriptor, 2)
    os.close(log_descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    environ = dict(message["environ"])
    _set_environment(environ)
    kernel.name_process(message["name"])
    if message["secrets"]:
        _show_secrets(message["secrets"])
    if message["network"]:
        kernel.enter_network(message["network"])
    if entry is None:
        module, _, attribute = message["entry"].partition(":")
        entry = getattr(importlib.import_module(module), attribute)
        assert entry is not None
    if message["user"] is not None:  # after the import: modules may be where only the gateway's user reads
        kernel.become_user(message["user"], parent_pid)

    def ready() -> None:
        gc.freeze()
        gc.enable()
        with contextlib.suppress(channel.ChannelClosedError):
            channel.send(line, {"event": "ready"})

    listener = socket.socket(fileno=listener_descriptor)
    entry(environ, listener, ready)
    return 0


def _prepare(message: channel.Message) -> Entry | None:
    """What the entry's module does ahead; None where it offers nothing or fails: it starts as from a blank then."""
    offered = getattr(importlib.import_module(message["entry"].partition(":")[0]), "prepare", None)
    if offered is None:
        return None
    try:
        prepared: Entry = offered(message["environ"])
    except Exception:
        traceback.print_exc()
        return None
    return prepared


def _show_secrets(folder: str) -> None:
    if not secret_mount.possible():
        return  # /system/info reports it
    try:
        secret_mount.enter(Path(folder))
    except OSError as error:
        print(f"secrets are in {folder} only, not in {secret_mount.SECRETS}: {error}", file=sys.stderr)


def _set_environment(environ: Mapping[str, str]) -> None:
    for key in list(os.environ):
        if key not in environ:
            del os.environ[key]
    os.environ.update(environ)
