"""What controllers saw last, and what the instances of decoders do, for the page: documents of files in the state
folder, and of controllers and ingresses asked by HTTP.

The gateway hands the documents on as they are; what they say of pipelines is the page's affair. The
page is served here, too (``/ui/``, ``/system/view``, ``/system/instances``); it is read-only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.contract import Backend, FunctionState
from platform_words.headers import CALLER_KEY
from platform_words.labels import NODES_LABEL

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
FRESH_S = 1.0
"""However many pages look on, controllers are asked once in this time."""
MAX_BYTES = 32 * 1024 * 1024


class Views:
    """``folder`` holds one JSON file a pipeline; ``controllers`` are addresses ``http://HOST:PORT``, of which every one
    that HOST stands for is asked for ``/view``."""

    def __init__(self, folder: Path, controllers: Sequence[str] = ()) -> None:
        self._folder = folder
        self._controllers = tuple(controllers)
        self._last: list[Any] = []
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def read(self) -> list[Any]:
        """One document a pipeline and namespace: that of the controller who leads, else the youngest. Never raises."""
        async with self._reading:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._read_s >= FRESH_S:
                asked = [self._ask_all(controller) for controller in self._controllers]
                documents = [document for answers in await asyncio.gather(*asked) for document in answers]
                self._last = _chosen([*self._files(), *documents])
                self._read_s = now_s
            return self._last

    def _files(self) -> list[Any]:
        documents = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                if path.stat().st_size <= MAX_BYTES:
                    documents.append(orjson.loads(path.read_bytes()))
            except (OSError, ValueError) as error:
                log.warning("the view %s could not be read: %s", path.name, error)
        return documents

    async def _ask_all(self, controller: str) -> list[Any]:
        parts = urlsplit(controller)
        port = parts.port or 80
        try:
            async with asyncio.timeout(TIMEOUT_S):
                loop = asyncio.get_running_loop()
                resolved = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            log.info("controllers at %s are not found: %s", controller, error)
            return []
        hosts = sorted({str(entry[4][0]) for entry in resolved})
        addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        answers = await asyncio.gather(*(_ask(address, "/view") for address in addresses))
        return [answer for answer in answers if answer is not None]


class Instances:
    """What the ingresses of decoders report of their instances: of each pipeline the first one that answers."""

    LEFT_OUT = ("flip_ms", "decision_ms")
    """Long lists that the page does not show."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._last: list[Any] = []
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()
        self._without: set[str] = set()
        """Replicas that have answered without instances: encoders, asked once."""

    async def read(self) -> list[Any]:
        """One document a pipeline and namespace. Never raises."""
        async with self._reading:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._read_s >= FRESH_S:
                states = [one for one in self._backend.list() if one.spec.labels.get(NODES_LABEL) == "ingress"]
                self._without &= {replica.id for one in states for replica in one.replicas}
                documents = await asyncio.gather(*map(self._of, states))
                self._last = [one for one in documents if one is not None]
                self._read_s = now_s
            return self._last

    async def _of(self, state: FunctionState) -> Any:
        """All ready replicas are asked at once, each within ``TIMEOUT_S``: a silent one holds up nobody behind it."""
        asked = [one for one in state.replicas if one.state == "ready" and one.id not in self._without]
        documents = await asyncio.gather(*(_ask(replica.address, "/statistics", state.caller_key) for replica in asked))
        for replica, document in zip(asked, documents, strict=True):
            generation = document.get("generation") if isinstance(document, dict) else None
            if isinstance(generation, dict):
                kept = {key: value for key, value in generation.items() if key not in self.LEFT_OUT}
                return {**kept, "pipeline": state.spec.name, "namespace": state.spec.namespace}
            if document is not None:
                self._without.add(replica.id)
        return None


async def _ask(address: str, path: str, key: str = "") -> Any:
    """None where it does not answer within ``TIMEOUT_S``. ``key``: what it asks of callers."""
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(f"http://{address}{path}", headers={CALLER_KEY: key}, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                return None
            data = await reply.content.read(MAX_BYTES + 1)
            while not reply.content.at_eof() and len(data) <= MAX_BYTES:
                data += await reply.content.read(MAX_BYTES + 1)
            return orjson.loads(data)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        log.info("%s at %s was not heard: %s", path, address, type(error).__name__)
        return None


def _chosen(documents: Iterable[Any]) -> list[Any]:
    best: dict[tuple[str, str], Any] = {}
    for one in documents:
        if isinstance(one, dict) and isinstance(one.get("pipeline"), str):
            key = (one["pipeline"], str(one.get("namespace", "")))
            if key not in best or _rank(one) > _rank(best[key]):
                best[key] = one
    return [best[key] for key in sorted(best)]


def _rank(document: dict[str, Any]) -> tuple[bool, float]:
    end_s = document.get("end_s")
    return document.get("leads") is True, float(end_s) if isinstance(end_s, int | float) else 0.0


TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "chat.html": "text/html; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "experts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
OPEN_FILES = ("style.css", "icon.svg")
"""What the login form shows, too."""
CHAT = "chat"
"""The path of ``chat.html``."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with "no-referrer" browsers send the login form with "Origin: null"
    "cache-control": "no-cache",
}


class Page:
    """Handlers of ``/ui``, ``/system/view`` and ``/system/instances``."""

    def __init__(self, views: Views, instances: Instances) -> None:
        self._views, self._instances = views, instances

    def routes(self) -> list[Route]:
        return [
            Route("/system/view", self.view, methods=["GET"]),
            Route("/system/instances", self.instances, methods=["GET"]),
            Route("/ui", self.slash, methods=["GET"]),
            Route("/ui/", self.file, methods=["GET"]),
            *(Route(f"/ui/{name}", self.file, methods=["GET"]) for name in OPEN_FILES),
            Route("/ui/{file}", self.file, methods=["GET"]),
        ]

    async def view(self, request: Request) -> Response:
        data = orjson.dumps({"views": await self._views.read()})
        return Response(data, media_type="application/json", headers={"cache-control": "no-store"})

    async def instances(self, request: Request) -> Response:
        data = orjson.dumps({"pipelines": await self._instances.read()})
        return Response(data, media_type="application/json", headers={"cache-control": "no-store"})

    async def slash(self, request: Request) -> Response:
        return RedirectResponse("/ui/", status_code=307)

    async def file(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/ui/") or "index.html"
        name = "chat.html" if name == CHAT else name
        if name not in TYPES:
            return PlainTextResponse("404 page not found", status_code=404)
        data = resources.files("gateway").joinpath("ui", name).read_bytes()
        return Response(data, media_type=TYPES[name], headers=HEADERS)
