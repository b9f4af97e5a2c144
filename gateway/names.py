"""Addresses of receivers' names, looked up in threads of their own.

The event loop's threads are few, every connection it opens may need one, and the process ends only when they do: names
that nobody answers for would hold up all of it. These threads are bounded, and are not waited for at the end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.turns import Known, Party, Turns

AT_ONCE = 32
AT_ONCE_PER_DOMAIN = 8
KEPT = 8
"""Look-ups for names that were answered before."""
Infos = Sequence[tuple[Any, Any, int, str, tuple[Any, ...]]]
"""What ``socket.getaddrinfo`` returns."""
LookUp = Callable[[str, int], Infos]
"""From a host and a family to its addresses; blocks."""


def owner_of(host: str) -> str:
    """Who is taken to answer for a host: its address (IPv6: the network of 64 bits), or the last two labels."""
    host = unicodedata.normalize("NFKC", host).lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ".".join(host.split(".")[-2:])
    return str(address if address.version == 4 else ipaddress.ip_network((address.packed, 64), strict=False))


def _system_look_up(host: str, family: int) -> Infos:
    return socket.getaddrinfo(host, 0, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


class Names(AbstractResolver):
    """aiohttp's resolver of callbacks: so many look-ups at once, a few of one domain, one of a name."""

    def __init__(self, look_up: LookUp = _system_look_up) -> None:
        self._look_up = look_up
        self._turns = Turns(AT_ONCE, each=AT_ONCE_PER_DOMAIN, kept=KEPT)
        self._running: dict[tuple[str, int], asyncio.Future[Infos | Exception]] = {}
        self._known = Known()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError where the name has no address, ValueError for what is no name. Whoever waits may give up: the
        look-up keeps its place until it ends."""
        running = self._running.get((host, family)) or await self._begun(host, family)
        try:
            infos = await asyncio.shield(running)
        except asyncio.CancelledError:
            self._known.note(host, well=False)
            raise
        if isinstance(infos, Exception):
            raise infos
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in infos
        ]

    async def close(self) -> None:
        """Nothing to end."""

    async def _begun(self, host: str, family: int) -> asyncio.Future[Infos | Exception]:
        trusted = host in self._known
        party = Party(host if trusted else owner_of(host), host, trusted)
        await self._turns.take(party)
        running = self._running.get((host, family))
        if running is not None:  # another caller's turn came first
            self._turns.give(party)
            return running
        loop = asyncio.get_running_loop()
        running = self._running[host, family] = loop.create_future()

        def end(infos: Infos | Exception) -> None:
            del self._running[host, family]
            self._turns.give(party)
            self._known.note(host, well=not isinstance(infos, Exception))
            running.set_result(infos)

        try:
            threading.Thread(target=self._thread, args=(loop, host, family, end), name="name", daemon=True).start()
        except RuntimeError as error:  # no more threads
            end(OSError(str(error)))
        return running

    def _thread(
        self, loop: asyncio.AbstractEventLoop, host: str, family: int, end: Callable[[Infos | Exception], None]
    ) -> None:
        infos: Infos | Exception
        try:
            infos = self._look_up(host, family)
        except Exception as error:
            infos = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(end, infos)
