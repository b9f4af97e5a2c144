"""Whether the other end of a TCP connection is still there, as the kernel knows it.

A machine that loses its power or its network sends no word: what waits for an answer from it would wait until its own
deadline. Linux acknowledges what a living machine receives however long the program there takes, so a call is given up
for silence of the machine, never for slowness of the program. ``TCP_USER_TIMEOUT`` would do the same but also ends
connections whose peer acknowledges and reads nothing for a while (kernel 6.18), as a worker below its CPU quota does.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Protocol

DEFAULT_S = 3.0
PROBE_S = 1
"""Between two probes of a connection on which nothing is under way; whole seconds are all that the kernel takes."""
PROBES = 127
"""Unanswered probes after which the kernel itself ends a connection, its most: callers decide before."""
UNANSWERED = 2
_SOL_SOCKET, _SO_KEEPALIVE, _TCP = 1, 9, 6
_KEEPIDLE, _KEEPINTVL, _KEEPCNT, _INFO = 4, 5, 6, 11
"""Linux's numbers; elsewhere nothing is asked."""
_FIELDS = struct.Struct("=3xB20xI28xI")
"""From ``struct tcp_info``: probes without an answer, segments without an acknowledgement, ms since the last one."""


class Socket(Protocol):
    """As uvloop and asyncio give it to protocols."""

    def setsockopt(self, level: int, option: int, value: int, /) -> object: ...

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


class Timer(Protocol):
    """What a loop gives for a call that comes later."""

    def cancel(self) -> None: ...


class Loop(Protocol):
    """The part of an event loop that keeps time."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...


def probe(connection: Socket) -> None:
    """Have the kernel probe the other end while nothing is under way."""
    if sys.platform != "linux":
        return
    try:
        connection.setsockopt(_SOL_SOCKET, _SO_KEEPALIVE, 1)
        for option, value in ((_KEEPIDLE, PROBE_S), (_KEEPINTVL, PROBE_S), (_KEEPCNT, PROBES)):
            connection.setsockopt(_TCP, option, value)
    except (OSError, ValueError):  # already closed, the latter in uvloop's words: whoever uses it finds out
        return


def silent_s(connection: Socket) -> float:
    """For how long the other end's machine has not acknowledged what it should have; 0.0 where nothing is due, where
    it is closed, or where the system does not know."""
    if sys.platform != "linux":
        return 0.0
    try:
        info = connection.getsockopt(_TCP, _INFO, _FIELDS.size)
    except (OSError, ValueError):
        return 0.0
    if len(info) < _FIELDS.size:
        return 0.0
    probes, unacknowledged, last_ms = _FIELDS.unpack(info)
    return last_ms / 1000 if unacknowledged or probes >= UNANSWERED else 0.0


class Watch:
    """Looks three times within ``silence_s`` whether the other end's machine acknowledges anything, until cancelled;
    calls ``given_up`` once, with the seconds that it has been silent for since, where they are too many."""

    def __init__(self, loop: Loop, connection: Socket, silence_s: float, given_up: Callable[[float], object]) -> None:
        self._loop, self._connection, self._silence_s, self._given_up = loop, connection, silence_s, given_up
        self._begun_s = loop.time()
        self._later: Timer = loop.call_later(silence_s / 3, self._look)

    def cancel(self) -> None:
        """Look no more."""
        self._later.cancel()

    def _look(self) -> None:
        silent = min(silent_s(self._connection), self._loop.time() - self._begun_s)
        if silent < self._silence_s:
            self._later = self._loop.call_later(self._silence_s / 3, self._look)
        else:
            self._given_up(silent)
