"""Clients of ``benchmarks.prism_real``: requests from inside each node, and what the ingresses counted."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import aiohttp
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.streams import samples_of
from benchmarks.prism_real.network import Node
from functions.serving.metric_names import MACHINE_BYTES, MACHINE_CALLS, NODE_TOKENS
from placement.layout import Floats

TIMEOUT_S = 60.0


@dataclass(frozen=True, eq=False)
class Served:
    """Requests of one run. Seconds from its beginning."""

    node: NDArray[np.int64]
    due_s: Floats
    """When it was to be sent: latency counts from then."""
    ended_s: Floats
    good: NDArray[np.bool_]
    """Answered with 200."""

    @property
    def failed(self) -> int:
        return int((~self.good).sum())

    def of(self, node: int) -> Served:
        return self._chosen(self.node == node)

    def between(self, from_s: float, until_s: float) -> Served:
        """Requests that were due in this time."""
        return self._chosen((self.due_s >= from_s) & (self.due_s < until_s))

    def _chosen(self, which: NDArray[np.bool_]) -> Served:
        return Served(self.node[which], self.due_s[which], self.ended_s[which], self.good[which])

    def mean_ms(self) -> float:
        """Milliseconds of answered requests; NaN where there are none."""
        return float((self.ended_s - self.due_s)[self.good].mean() * 1000) if self.good.any() else float("nan")

    def p95_ms(self) -> float:
        """Milliseconds of answered requests; NaN where there are none."""
        spent = (self.ended_s - self.due_s)[self.good]
        return float(np.quantile(spent, 0.95) * 1000) if spent.size else float("nan")


def joined(runs: list[Served]) -> Served:
    """All requests of several runs."""
    names = ("node", "due_s", "ended_s", "good")
    return Served(*(np.concatenate([getattr(run, name) for run in runs]) for name in names))


def send_all(nodes: tuple[Node, ...], addresses: list[str], texts: list[list[str]], arrivals: list[Floats]) -> Served:
    """Send node n's ``texts[n]`` at ``arrivals[n]`` to the ingress ``addresses[n]``, whatever is still unanswered."""
    began_s = time.monotonic() + 0.2
    with ThreadPoolExecutor(len(nodes)) as pool:
        rows = [
            pool.submit(node.run, lambda n=n: asyncio.run(_send(addresses[n], texts[n], arrivals[n], began_s)))
            for n, node in enumerate(nodes)
        ]
        answered = [row.result() for row in rows]
    return joined(
        [Served(np.full(len(ended), n), arrivals[n], ended, good) for n, (ended, good) in enumerate(answered)]
    )


async def _send(address: str, texts: list[str], arrivals: Floats, began_s: float) -> tuple[Floats, NDArray[np.bool_]]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(text: str, due_s: float) -> tuple[float, bool]:
            await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            try:
                async with session.post(f"http://{address}/", json={"inputs": text}) as reply:
                    await reply.read()
                    good = reply.status == 200
            except (aiohttp.ClientError, TimeoutError):
                good = False
            return time.monotonic() - began_s, good

        rows = await asyncio.gather(*(one(text, float(due)) for text, due in zip(texts, arrivals, strict=True)))
    return np.array([ended for ended, _ in rows], dtype=np.float64), np.array(
        [good for _, good in rows], dtype=np.bool_
    )


@dataclass(frozen=True, eq=False)
class Counts:
    """What the ingresses of all nodes counted."""

    tokens: Floats
    """[nodes, layers, experts]: tokens sent to each expert by the node's ingress."""
    local: float
    """Calls of experts on the ingress's own node."""
    remote: float
    remote_bytes: float
    """Sent and received."""

    def __add__(self, other: Counts, sign: int = 1) -> Counts:
        names = ("tokens", "local", "remote", "remote_bytes")
        return Counts(*(getattr(self, name) + sign * getattr(other, name) for name in names))

    def __sub__(self, other: Counts) -> Counts:
        return self.__add__(other, -1)

    @property
    def local_ratio(self) -> float:
        """Part of expert calls that stayed on their node; NaN where there were none."""
        calls = self.local + self.remote
        return self.local / calls if calls else float("nan")

    def mixed(self) -> Floats:
        """Tokens [nodes, layers, experts] as if every node had an equal part of all."""
        uniform: Floats = np.broadcast_to(self.tokens.mean(axis=0), self.tokens.shape).copy()
        return uniform


def counted(addresses: list[str], shape: tuple[int, int]) -> Counts:
    """Read every ingress's counters. Raises requests.RequestException."""
    tokens = np.zeros((len(addresses), *shape))
    local = remote = remote_bytes = 0.0
    for node, address in enumerate(addresses):
        for sample in samples_of(address):
            labels = sample.labels
            if sample.name == NODE_TOKENS and labels["node"].startswith("expert-"):
                _, layer, expert = labels["node"].split("-")
                tokens[node, int(layer), int(expert)] += sample.value
            elif sample.name == MACHINE_CALLS and labels["kind"] == "expert":
                local += sample.value if labels["place"] == "local" else 0.0
                remote += sample.value if labels["place"] == "remote" else 0.0
            elif sample.name == MACHINE_BYTES and labels["place"] == "remote":
                remote_bytes += sample.value
    return Counts(tokens, local, remote, remote_bytes)
