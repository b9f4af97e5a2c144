"""What a line to another node costs, measured: the numbers that decide between direct and two-phase transfer.

Every ``PERIOD_S`` a few messages without work go to workers of each node that is not the ingress's own: a small one
alone, several small ones at once, a large one, and one that its worker passes on to siblings. Each number is the least
of the last ``KEPT`` rounds, since whatever else a machine does can only make a message slower.

The rule (Janus, section 3.2, as arithmetic): n groups for one node cost, sent one by one, n messages and the rows of
every group; as one message they cost one message, every row once, and the spreading of n - 1 groups on the node:

    direct    n · message_s + bytes_direct / bytes_per_s
    two-phase     message_s + bytes_once / bytes_per_s + (n - 1) · spread_s
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from functions.dispatch.client import ConnectionPool, TransportError, request_head
from functions.dispatch.dispatcher import Dispatcher
from functions.ingress.calls import gather_or_cancel
from functions.serving.traffic import Link, Traffic
from functions.wire import arrays, bundles
from functions.wire.arrays import Arrays
from functions.wire.bundles import GROUPS, RELAY_PATH
from functions.wire.format import CONTENT_TYPE, total_bytes
from platform_words.headers import CALLER_KEY, TIMEOUT_MS

log = logging.getLogger(__name__)

PERIOD_S = 5.0
FIRST_PERIOD_S = 0.25
"""Period of the first rounds, until a node has ``SOON`` of them."""
SOON = 4
KEPT = 24
SIBLINGS = 4
"""Workers of a node that take part in a round."""
LARGE_BYTES = 1024 * 1024
"""More than a line lets pass in a burst, less than two percent of 100 Mbit/s in a period."""
TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Rounds:
    """What the last rounds on one node took: alone, together, large, spread; seconds."""

    measured: deque[tuple[float, float, float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    siblings: int = 0

    def link(self) -> Link:
        alone, together, large, spread = (min(column) for column in zip(*self.measured, strict=True))
        others = max(1, self.siblings - 1)
        return Link(
            hop_s=alone,
            message_s=max(0.0, together - alone) / others,
            spread_s=max(0.0, spread - alone) / others,
            bytes_per_s=LARGE_BYTES / max(1e-6, large - alone),
        )


class LinkMeter:
    """Keeps ``traffic.links`` current while it runs."""

    def __init__(self, functions: Sequence[str], dispatcher: Dispatcher, traffic: Traffic, key: str) -> None:
        """``functions``: those whose workers relay; ``key``: what they take calls with."""
        self._functions = functions
        self._dispatcher = dispatcher
        self._traffic = traffic
        self._key = key
        self._rounds: dict[str, _Rounds] = {}
        self._pools: dict[str, ConnectionPool] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        try:
            while True:
                nodes = self._siblings()
                for node, addresses in nodes.items():
                    await self._try_round(node, addresses)
                self._forget(nodes)
                new = any(len(self._rounds[node].measured) < SOON for node in nodes if node in self._rounds)
                await asyncio.sleep(FIRST_PERIOD_S if new or not nodes else PERIOD_S)
        finally:
            for pool in self._pools.values():
                pool.close()

    def _siblings(self) -> dict[str, list[str]]:
        """A few workers' addresses on every other node that has two or more."""
        siblings: dict[str, dict[str, None]] = {}
        for name in self._functions:
            for replica in self._dispatcher.replicas(name):
                if replica.node and replica.node != self._traffic.machine:
                    siblings.setdefault(replica.node, {})[replica.address] = None
        return {node: list(addresses)[:SIBLINGS] for node, addresses in siblings.items() if len(addresses) > 1}

    def _forget(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Lines to nodes, and connections to workers, that are gone."""
        for node in self._rounds.keys() - nodes.keys():
            del self._rounds[node]
        asked = {address for addresses in nodes.values() for address in addresses}
        for address in self._pools.keys() - asked:
            self._pools.pop(address).close()
        self._traffic.links = {node: rounds.link() for node, rounds in self._rounds.items() if rounds.measured}

    async def _try_round(self, node: str, addresses: Sequence[str]) -> None:
        """One round; what fails is left out."""
        rounds = self._rounds.setdefault(node, _Rounds(siblings=len(addresses)))
        if rounds.siblings != len(addresses):
            rounds = self._rounds[node] = _Rounds(siblings=len(addresses))
        try:
            rounds.measured.append(await self._round(addresses))
        except TransportError as error:
            log.debug("the line to %s was not measured: %s", node, error)

    async def _round(self, addresses: Sequence[str]) -> tuple[float, float, float, float]:
        """Seconds of a small message alone, of small ones together, of a large one, of one that is spread."""
        first, *others = addresses
        small, large = np.empty((0, 1), np.float32), np.zeros((LARGE_BYTES // 4, 1), np.float32)
        empty = [np.empty(0, np.intp) for _ in others]
        together_s = await self._timed(*[self._ask(address, {"x": small}) for address in addresses])
        alone_s = await self._timed(self._ask(first, {"x": small}))
        large_s = await self._timed(self._ask(first, {"x": large}))
        targets = ",".join(f"{address}{RELAY_PATH}" for address in others)
        spread_s = await self._timed(self._ask(first, bundles.gather_rows(small, empty), targets))
        return alone_s, together_s, large_s, spread_s

    async def _timed(self, *asked: Coroutine[Any, Any, None]) -> float:
        begun_s = time.perf_counter()  # the loop's clock has milliseconds
        await gather_or_cancel(asked)
        return time.perf_counter() - begun_s

    async def _ask(self, address: str, tensors: Arrays, targets: str = "") -> None:
        """A message without work. Raises TransportError."""
        pool = self._pools.setdefault(address, ConnectionPool(address))
        chunks = arrays.encode(tensors)
        headers = [(TIMEOUT_MS, f"{TIMEOUT_S * 1000:.0f}"), (GROUPS, targets), (CALLER_KEY, self._key)]
        head = request_head(RELAY_PATH, address, CONTENT_TYPE, total_bytes(chunks), headers)
        reply = await pool.call(head, chunks, TIMEOUT_S)
        if reply.status != 200:
            raise TransportError(f"{address} answered {reply.status}", reason="status")


def two_phase_pays(link: Link, groups: int, bytes_direct: int, bytes_once: int) -> bool:
    """Whether one message that is spread on the node costs less than one for each of ``groups``."""
    direct_s = groups * link.message_s + bytes_direct / link.bytes_per_s
    two_phase_s = link.message_s + bytes_once / link.bytes_per_s + (groups - 1) * link.spread_s
    return two_phase_s < direct_s
