"""An instance: one replica of every function that serves segments. It keeps the keys and values of its texts; experts
keep nothing and serve all instances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from functions.dispatch.client import ConnectionPool, RawReply, TransportError, request_head
from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.dispatch.replicas import ReplicaAddress
from functions.generation.texts import Text
from functions.ingress.calls import NodeCaller, PassContext, gather_or_cancel
from functions.ingress.passes import PipelinePass
from functions.wire import arrays
from functions.wire import format as wire
from functions.wire.arrays import Array, Arrays
from functions.wire.errors import KvFullError, KvLostError, OverloadedError
from functions.wire.layout import Part
from functions.wire.messages import ALL_LOGITS, KV_FULL, KV_SOURCE, LIKELIEST
from moe.manifest import Manifest
from platform_words.headers import CALLER_KEY, TIMEOUT_MS

Answer = Array | int
"""What a pass gives of a text: logits ``[rows, vocab]``, or its likeliest next token."""
Sent = Mapping[str, Array | Part]
Parts = Sequence[tuple[Text, int]]
"""Texts, and how many of their next tokens are computed."""

log = logging.getLogger(__name__)

FREE_AGAIN_S = (0.05, 0.2, 1.0)
"""Seconds until pages are freed again that a replica with too many calls under way did not free."""
ASK_S = 5.0
"""Time in which a replica answers about its room, or frees pages."""


class NoKvError(Exception):
    """The segments keep no keys and values; the message is a sentence for the client."""


class UnreachableError(Exception):
    """A replica does not answer; ``replica`` is its id."""

    def __init__(self, message: str, replica: str) -> None:
        super().__init__(message)
        self.replica = replica


class Instance:
    """Calls the same replicas for every part of a pass."""

    def __init__(
        self,
        manifest: Manifest,
        caller: NodeCaller,
        driver: PipelinePass,
        dispatcher: Dispatcher,
        replicas: Mapping[str, ReplicaAddress],
    ) -> None:
        """``replicas``: by function."""
        self.replicas = replicas
        self.pages = 0
        """Pages that a text may be spread over, the fewest of all segments; known once ``open`` has asked."""
        self.page_tokens = 1
        self.bytes_per_token = 0
        row_bytes = 4 * int(manifest.architecture.get("decoder", manifest.architecture)["vocab_size"])
        self.scored_tokens = max(1, (wire.MAX_BYTES - 4096) // row_bytes)
        """Tokens whose logits fit one message."""
        self._caller = caller
        self._driver = driver
        self._dispatcher = dispatcher
        self._layers, self._top_k = manifest.layers, manifest.router.top_k
        self._replica_of = [(segment.id, replicas[caller.address(segment.id)[0]].id) for segment in manifest.segments]
        self._pools = {name: ConnectionPool(replica.address) for name, replica in replicas.items()}
        self._tasks: set[asyncio.Task[None]] = set()

    def whole(self) -> bool:
        """Whether all its replicas are still in the table, where they were, and take new texts."""
        return self._all_in(self._dispatcher.replicas)

    def reachable(self) -> bool:
        """Whether all its replicas still serve the texts that they have: they may be draining."""
        return self._all_in(lambda name: [*self._dispatcher.replicas(name), *self._dispatcher.draining(name)])

    def _all_in(self, table: Callable[[str], Sequence[ReplicaAddress]]) -> bool:
        return all(
            any((one.id, one.address) == (replica.id, replica.address) for one in table(name))
            for name, replica in self.replicas.items()
        )

    async def open(self) -> None:
        """Ask for the segments' room. Raises NoKvError, UnreachableError."""
        fewest: int | None = None
        for name, replica in self.replicas.items():
            key = f"{CALLER_KEY}: {replica.key}\r\n" if replica.key else ""
            head = f"GET /kv HTTP/1.1\r\nhost: {replica.address}\r\n{key}\r\n".encode()
            try:
                reply = await self._pools[name].call(head, [], ASK_S, self._dispatcher.silence_s)
            except TransportError as error:
                raise UnreachableError(f"{name}: {error}", replica.id) from None
            page_tokens, nodes = _room(name, replica, reply)
            self.page_tokens = page_tokens
            for pages, bytes_per_token in nodes:
                self.bytes_per_token += bytes_per_token
                if bytes_per_token:
                    fewest = pages if fewest is None else min(fewest, pages)
        self.pages = fewest or 0

    async def run(self, parts: Parts, context: PassContext) -> tuple[list[Answer], Array | None]:
        """One pass over the next tokens of some texts: of each the logits ``[rows, vocab]``, one row after its last
        token, or one after each token where the text is ``scoring``; the likeliest tokens alone where no text wants
        more; and where one is ``routed`` the chosen experts
        ``[B, layers, k]`` of each text's last token. Raises KvError, CallError."""
        which = _which(parts)
        tokens = [token for text, count in parts for token in text.tokens[text.kept : text.kept + count]]
        tensors: Sent = {"token_ids": np.array(tokens, np.int64), **which}
        last = np.cumsum([count for _, count in parts]) - 1 if any(text.routed for text, _ in parts) else None
        experts = []
        for layer in range(self._layers):
            routed = await self._segment(layer, tensors, context)
            hidden = await self._driver.layer(layer, routed, context)
            if last is not None:
                experts.append(routed["expert_ids"][last, : self._top_k])
            tensors = {"hidden": hidden, **which}
        logits = await self._logits(parts, hidden, tensors, context)
        return logits, np.stack(experts, 1) if experts else None

    async def _logits(self, parts: Parts, hidden: Array, tensors: Sent, context: PassContext) -> list[Answer]:
        """The last segment: texts that are ``scoring`` in a call of their own each, as their answers are large, and of
        others no more at once than whose logits fit one message."""
        greedy = all(text.sampler.greedy for text, _ in parts)
        if not any(text.scoring for text, _ in parts) and (greedy or len(parts) <= self.scored_tokens):
            reply = await self._segment(self._layers, tensors, context, ((LIKELIEST, "1"),) if greedy else ())
            return list(reply["likeliest"].tolist() if "likeliest" in reply else reply["logits"][:, None])
        edges = np.cumsum([0, *(count for _, count in parts)])
        plain = [place for place, (text, _) in enumerate(parts) if not text.scoring]
        groups = [[place] for place, (text, _) in enumerate(parts) if text.scoring]
        groups += [plain[at : at + self.scored_tokens] for at in range(0, len(plain), self.scored_tokens)]
        calls = []
        for group in groups:
            rows = np.concatenate([np.arange(edges[place], edges[place + 1]) for place in group])
            members = [parts[place] for place in group]
            part: Sent = {"hidden": hidden[rows], **_which(members)}
            headers = ((ALL_LOGITS, "1"),) if members[0][0].scoring else ()
            calls.append(self._segment(self._layers, part, context, headers))
        logits: dict[int, Answer] = {}
        for group, reply in zip(groups, await gather_or_cancel(calls), strict=True):
            whole = len(group) == 1 and parts[group[0]][0].scoring
            logits |= zip(group, [reply["logits"]] if whole else reply["logits"][:, None], strict=True)
        return [logits[place] for place in range(len(parts))]

    async def _segment(
        self, index: int, tensors: Sent, context: PassContext, headers: Sequence[tuple[str, str]] = ()
    ) -> Arrays:
        node_id, replica = self._replica_of[index]
        return await self._caller.call(node_id, tensors, context, CallRecord(), replica=replica, headers=headers)

    async def pull(self, text: Text, source: Instance, limit_s: float) -> int:
        """Have every replica here fetch the pages of ``text`` from its counterpart in ``source``, until ``limit_s`` on
        the loop's clock; how many bytes came. Raises KvFullError, KvLostError."""
        tensors = {"sequences": np.array([text.kv_id], np.int64), "tokens": np.array([text.kept], np.int64)}
        chunks = arrays.encode(tensors)
        return sum(await gather_or_cancel([self._pull_at(name, source, chunks, limit_s) for name in self.replicas]))

    async def _pull_at(self, name: str, source: Instance, chunks: Sequence[wire.Chunk], limit_s: float) -> int:
        left_s = max(0.0, limit_s - asyncio.get_running_loop().time())
        headers = [(KV_SOURCE, source.replicas[name].address), (TIMEOUT_MS, f"{left_s * 1000:.1f}")]
        try:
            reply = await self._post(name, "/kv/pull", chunks, left_s, headers)
        except TransportError as error:
            raise KvLostError(f"{name}: {error}") from None
        if reply.status == 200:
            return int(orjson.loads(reply.body)["bytes"])
        message = f"{name} answered {reply.status}: {bytes(reply.body[:300]).decode('utf-8', 'replace')}"
        raise KvFullError(message) if reply.status == KV_FULL else KvLostError(message)

    def free(self, kv_ids: Sequence[int]) -> None:
        """Have all replicas free these texts' pages, without waiting; one that cannot be reached frees them later by
        itself, as nobody asks for them any more."""
        if kv_ids:
            task = asyncio.get_running_loop().create_task(self._free(list(kv_ids)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settled(self) -> bool:
        """Wait until all that was to be freed is; returns whether anything was."""
        tasks = list(self._tasks)
        await asyncio.gather(*tasks)
        return bool(tasks)

    async def close(self) -> None:
        """Free what was to be freed, and close connections."""
        await self.settled()
        for pool in self._pools.values():
            pool.close()

    async def _free(self, kv_ids: list[int]) -> None:
        chunks = arrays.encode({"sequences": np.array(kv_ids, np.int64)})
        await asyncio.gather(*(self._free_at(name, chunks) for name in self.replicas))

    async def _free_at(self, name: str, chunks: Sequence[wire.Chunk]) -> None:
        """Once more where the replica has too many calls under way, as pages that stay are missing for minutes."""
        try:
            for pause_s in (*FREE_AGAIN_S, None):
                reply = await self._post(name, "/kv/free", chunks, ASK_S)
                if reply.status != OverloadedError.status or pause_s is None:
                    break
                await asyncio.sleep(pause_s)
        except TransportError as error:
            log.info("pages at %s are not freed: %s", self._pools[name].address, error)

    async def _post(
        self,
        name: str,
        path: str,
        chunks: Sequence[wire.Chunk],
        timeout_s: float,
        headers: Sequence[tuple[str, str]] = (),
    ) -> RawReply:
        """One call to the replica of a function. Raises TransportError."""
        pool = self._pools[name]
        shown = [(CALLER_KEY, self.replicas[name].key), *headers]
        head = request_head(path, pool.address, wire.CONTENT_TYPE, wire.total_bytes(chunks), shown)
        return await pool.call(head, chunks, timeout_s)


def _room(name: str, replica: ReplicaAddress, reply: RawReply) -> tuple[int, list[tuple[int, int]]]:
    """Tokens of a page, and of every node its pages and bytes of a token, as a replica answered for ``name``. Raises
    NoKvError; UnreachableError where that is no answer."""
    try:
        document: dict[str, Any] = orjson.loads(reply.body)
        if reply.status in (400, 404):
            raise NoKvError(f"{name} keeps no keys and values: {document['error']['message']}")
        if reply.status != 200:
            raise UnreachableError(f"{name} answered {reply.status}", replica.id)
        nodes = [(int(node["pages"]), int(node["bytes_per_token"])) for node in document["nodes"].values()]
        return int(document["page_tokens"]), nodes
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreachableError(
            f"{name} answered {reply.status} with something else than its room", replica.id
        ) from None


def _which(parts: Parts) -> dict[str, Part]:
    """Whose tokens a pass has, and what segments have of them; ready to be sent, as every segment gets it."""
    values = {
        "lengths": [count for _, count in parts],
        "sequences": [text.kv_id for text, _ in parts],
        "starts": [text.kept for text, _ in parts],
        "parents": [text.parent for text, _ in parts],
    }
    return {name: arrays.part(name, np.array(of_texts, np.int64)) for name, of_texts in values.items()}


def form(
    manifest: Manifest, caller: NodeCaller, dispatcher: Dispatcher, taken: Sequence[Instance], avoided: Collection[str]
) -> list[dict[str, ReplicaAddress]]:
    """Replicas by function of all instances that can be made of those in none of ``taken`` and not ``avoided``;
    replicas of one machine go together, the oldest with the oldest, as the youngest are the first that are scaled away.
    Raises NoKvError for addresses behind which any replica may answer."""
    names = list(dict.fromkeys(caller.address(segment.id)[0] for segment in manifest.segments))
    free: dict[str, list[ReplicaAddress]] = {}
    for name in names:
        used = {instance.replicas[name].id for instance in taken}
        free[name] = sorted(
            (one for one in dispatcher.replicas(name) if one.id not in used | set(avoided)),
            key=lambda one: one.node,
        )
        if any(one.balanced for one in free[name]):
            raise NoKvError(f"{name} is known by its service's address only, so a text cannot come back to a replica")
    return [dict(zip(names, row, strict=True)) for row in zip(*free.values(), strict=False)]
