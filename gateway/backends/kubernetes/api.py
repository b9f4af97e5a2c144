"""Calls to the API server: bounded tries, named errors, streams of lines.

By aiohttp, on the gateway's own event loop: watches and followed logs are streams without end, for each of which the
official client would need a thread. That client only reads kubeconfig files and service accounts here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import aiohttp

from gateway.backends.kubernetes.connection import Connection
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import BackendError

log = logging.getLogger(__name__)

FIELD_MANAGER = "smoe-gateway"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
MARK = "smoe.made-by-call"
"""Annotation by which a create recognizes its own object when the answer was lost."""
MAX_LINE_BYTES = 8 << 20
"""An object in a watch; etcd refuses objects of more than 1.5 MiB."""
TLS_FAREWELL_S = 0.25
"""Connections under TLS end a little after their session (aiohttp's advanced client usage, "Graceful shutdown")."""

Object = dict[str, Any]
Method = Literal["GET", "POST", "PATCH", "DELETE"]


class ApiError(BackendError):
    """The API server refused. ``code`` is the HTTP status, ``message`` its sentence, ``reason`` its short code."""

    def __init__(self, what: str, code: int, message: str, reason: str = "") -> None:
        super().__init__(f"{what}: the Kubernetes API server answered {code}: {message[:400]}")
        self.code = code
        self.message = message
        self.reason = reason

    @property
    def exists(self) -> bool:
        """Whether the name is taken, which is another 409 than a conflict of writers."""
        return self.code == 409 and self.reason == "AlreadyExists"


class UnreachableError(BackendError):
    """The API server did not answer in time."""


class Api:
    """Sessions with the API server. Each call here states what should be, so repeating one is safe."""

    def __init__(self, connection: Connection, settings: KubernetesSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._session = self._open(limit=64)
        self._streams = self._open(limit=0)
        """Watches and followed logs: each holds its connection, so none may keep calls waiting for one."""

    def _open(self, limit: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=limit, ssl=self._connection.tls or False)
        return aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=True)

    async def close(self) -> None:
        await self._session.close()
        await self._streams.close()
        if self._connection.tls is not None:
            await asyncio.sleep(TLS_FAREWELL_S)

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = "application/json") -> Object:
        return await self.call("GET", path, params=params, accept=accept)

    async def find(self, path: str) -> Object | None:
        """The object at ``path``, or None."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def create(self, path: str, document: Object) -> Object:
        """Make what must not be there yet; of several who make it at once, one does. Raises ApiError (``exists``).

        A try whose answer was lost may have made it. What carries this call's mark is this call's.
        """
        meta, mark = document["metadata"], uuid.uuid4().hex
        annotations = {**meta.get("annotations", {}), MARK: mark}
        marked = {**document, "metadata": {**meta, "annotations": annotations}}
        try:
            return await self.call("POST", path, marked, params={"fieldManager": FIELD_MANAGER})
        except ApiError as error:
            present = await self.find(f"{path}/{meta['name']}") if error.exists else None
            if present is None or (present["metadata"].get("annotations") or {}).get(MARK) != mark:
                raise
            return present

    async def apply(self, path: str, document: Object) -> Object:
        """Server-side apply, taking fields over from whoever owned them."""
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.call("PATCH", path, document, content_type=APPLY, params=params)

    async def merge(self, path: str, patch: Object, content_type: str = MERGE, *, again: bool = True) -> Object:
        """A patch. ``again`` False: one that names a resource version, for which a conflict is final."""
        params = {"fieldManager": FIELD_MANAGER}
        return await self.call("PATCH", path, patch, content_type=content_type, params=params, again=again)

    async def call(
        self,
        method: Method,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        again: bool = True,
    ) -> Object:
        """The reply's JSON. Raises ApiError and UnreachableError, after the tries that the settings allow."""
        what = f"{method} {path}"
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers(accept), **({"Content-Type": content_type} if data is not None else {})}
        wait_s = self._settings.first_wait_s
        for left in reversed(range(self._settings.tries)):
            try:
                status, text, retry_after_s = await self.once(method, path, data, params, headers)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if not left:
                    raise UnreachableError(
                        f"{what}: no answer of the Kubernetes API server at {self._connection.url}: "
                        f"{type(error).__name__}"
                    ) from error
            else:
                if status < 300:
                    return _object(what, text)
                if not left or not _worth_repeating(status, text, again):
                    raise ApiError(what, status, _message(text), _reason(text))
                wait_s = max(wait_s, retry_after_s)
            await asyncio.sleep(min(wait_s, 5.0))
            wait_s *= 2
        raise AssertionError("unreachable")

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str = "application/json", silence_s: float | None = None
    ) -> AsyncIterator[bytes]:
        """Lines of a reply that goes on; ``silence_s`` bounds the wait for the next piece. Raises like :meth:`call`,
        without other tries."""
        what = f"GET {path}"
        timeout = aiohttp.ClientTimeout(total=None, connect=self._settings.request_timeout_s, sock_read=silence_s)
        try:
            async with self._streams.get(
                self._connection.url + path, params=params, headers=self._headers(accept), timeout=timeout
            ) as reply:
                if reply.status >= 300:
                    raise ApiError(what, reply.status, _message((await reply.read()).decode(errors="replace")))
                try:
                    async for line in _split(reply.content, what):
                        yield line
                finally:
                    _cut(reply)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{what}: {type(error).__name__}") from error

    async def once(
        self, method: str, path: str, data: bytes | None, params: Mapping[str, str] | None, headers: Mapping[str, str]
    ) -> tuple[int, str, float]:
        """One try: status, text, and the seconds that the server asks to wait (``Retry-After``)."""
        timeout = aiohttp.ClientTimeout(total=self._settings.request_timeout_s)
        async with self._session.request(
            method, self._connection.url + path, data=data, params=params, headers=headers, timeout=timeout
        ) as reply:
            text = (await reply.read()).decode(errors="replace")
            after = reply.headers.get("Retry-After", "")
            return reply.status, text, float(after) if after.isascii() and after.isdigit() else 0.0

    def _headers(self, accept: str) -> dict[str, str]:
        authorization = self._connection.authorization()
        return {"Accept": accept, **({} if authorization is None else {"Authorization": authorization})}


async def _split(content: aiohttp.StreamReader, what: str) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in content.iter_any():
        rest += piece
        *whole, tail = rest.split(b"\n")
        for line in whole:
            yield bytes(line)
        rest = bytearray(tail)
        if len(rest) > MAX_LINE_BYTES:
            raise UnreachableError(f"{what}: a line of more than {MAX_LINE_BYTES} bytes")
    if rest:
        yield bytes(rest)


def _cut(reply: aiohttp.ClientResponse) -> None:
    """A stream that is given up before its end waits for no farewell of TLS, which would outlive the session."""
    if reply.connection is not None and reply.connection.transport is not None:
        reply.connection.transport.abort()


def _worth_repeating(status: int, text: str, conflicts: bool) -> bool:
    """A conflict with another writer passes; a name that is taken does not."""
    return status in (429, 500, 502, 503, 504) or (status == 409 and conflicts and _reason(text) != "AlreadyExists")


def _object(what: str, text: str) -> Object:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ApiError(what, 502, "the reply is not JSON") from error
    if not isinstance(document, dict):
        raise ApiError(what, 502, "the reply is not a JSON object")
    return document


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return ""


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or "no reason given"
