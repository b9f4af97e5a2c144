"""``/v1/…`` as raw ASGI: the API of OpenAI's clients for all pipelines; a request's ``model`` names the function.

The door reads a body to find the model and hands the call to the front door, so it is streamed, repeated and counted as
any other. A key (``Authorization: Bearer``) is asked for where the gateway listens beyond loopback.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.contract import DEFAULT_NAMESPACE, Backend, FunctionSpec, NotFoundError
from gateway.front import BUSY, FrontDoor, refuse_body
from gateway.held import HeldBytes, Room, TooMuchHeldError
from gateway.specs import split_name
from platform_words.labels import CONTEXT, NODES_LABEL
from platform_words.memory import INGRESS_BODY_BYTES

WRITING = ("/v1/chat/completions", "/v1/completions")
POSTS = (*WRITING, "/v1/embeddings")
MODELS = "/v1/models"
EVENTS = (b"accept", b"text/event-stream")
"""What of-watchdog goes by: without it, as OpenAI's clients are, it keeps events back until 4 KiB have come."""


class OpenAiDoor:
    """Routes by model. ``key`` None: everybody may call."""

    def __init__(self, front: FrontDoor, backend: Backend, held: HeldBytes, key: str | None) -> None:
        self._front = front
        self._held = held
        self._backend = backend
        self._key = key

    @staticmethod
    def served() -> set[tuple[str, str]]:
        """(method, path) of everything here, as openapi.yaml writes it."""
        return {("POST", path) for path in POSTS} | {("GET", MODELS), ("GET", f"{MODELS}/{{model}}")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path, method = scope["path"].rstrip("/"), scope["method"]
        allowed = "POST" if path in POSTS else "GET"
        reading = f"{path}/".startswith(f"{MODELS}/")
        if self._key is not None and not self._allowed(scope, self._key):
            reply = _error(401, "the API key is missing or wrong; send it as Authorization: Bearer", "invalid_api_key")
        elif not reading and path not in POSTS:
            reply = _error(404, f"there is no {path}", "unknown_url")
        elif reading and method in ("GET", "HEAD"):
            reply = self._read(path.removeprefix(MODELS).removeprefix("/"))
        elif reading or method != "POST":
            reply = _error(405, f"{path} takes {allowed}", "method_not_allowed", {"allow": allowed})
        else:
            await self._call(scope, path, receive, send)
            return
        await reply(scope, receive, send)

    async def _call(self, scope: Any, path: str, receive: Any, send: Any) -> None:
        try:
            with self._held.room() as room:  # the front door takes its own for what is read here
                body = await _body(receive, room)
        except TooMuchHeldError as error:
            await refuse_body(receive, send, _error(503, str(error), "busy", BUSY))
            return
        if body is None:
            message = f"the body is larger than {INGRESS_BODY_BYTES} bytes"
            reply = _error(413, message, "too_large", {"connection": "close"})
            await refuse_body(receive, send, reply)
            return
        document = _document(body)
        model = _model_of(document)
        if model is None or not self._serves(model):
            await _no_model(model)(scope, receive, send)
            return
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return whole.pop() if whole else await receive()

        target = f"/function/{model}{path}"
        inner = {**scope, "path": target, "raw_path": target.encode()}
        if document.get("stream") is True:
            inner["headers"] = [pair for pair in scope["headers"] if pair[0] != b"accept"] + [EVENTS]
        await self._front(inner, again, send)

    def _read(self, model: str) -> JSONResponse:
        """One model; empty: the list of all."""
        models = self._models()
        if not model:
            return JSONResponse({"object": "list", "data": [models[name] for name in sorted(models)]})
        return JSONResponse(models[model]) if model in models else _no_model(model)

    def _models(self) -> dict[str, dict[str, Any]]:
        specs = [state.spec for state in self._backend.list() if _is_ingress(state.spec)]
        return {_called(spec): _model(spec) for spec in specs}

    def _serves(self, model: str) -> bool:
        try:
            return _is_ingress(self._backend.get(*split_name(model)).spec)
        except NotFoundError:
            return False

    def _allowed(self, scope: Any, key: str) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, value = header.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(value.strip(), key.encode())


class PageDoor:
    """``/ui/v1/…``: the same for the gateway's own page, behind its password in place of the key."""

    PREFIX = "/ui"

    def __init__(self, door: OpenAiDoor) -> None:
        """``door``: one without a key."""
        self._door = door

    def routes(self) -> list[Route]:
        return [
            Route(f"{self.PREFIX}{MODELS}", self, methods=["GET"]),
            *(Route(f"{self.PREFIX}{path}", self, methods=["POST"]) for path in WRITING),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [
            pair for pair in scope["headers"] if pair[0] not in (b"authorization", b"cookie")
        ]  # not a function's
        inner = {**scope, "path": scope["path"].removeprefix(self.PREFIX), "headers": headers}
        await self._door(inner, receive, send)


def _is_ingress(spec: FunctionSpec) -> bool:
    return spec.labels.get(NODES_LABEL) == "ingress"


def _called(spec: FunctionSpec) -> str:
    return spec.name if spec.namespace == DEFAULT_NAMESPACE else f"{spec.name}.{spec.namespace}"


def _model(spec: FunctionSpec) -> dict[str, Any]:
    """With a decoder's context under the name that vLLM gives it."""
    document = {"id": _called(spec), "object": "model", "created": 0, "owned_by": "smoe"}
    context = spec.annotations.get(CONTEXT, "")
    return {**document, "max_model_len": int(context)} if re.fullmatch(r"[1-9][0-9]{0,17}", context) else document


async def _body(receive: Any, room: Room) -> bytes | None:
    """None where it is too large; empty where the client leaves within it. Raises TooMuchHeldError."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        room.take(len(parts[-1]))
        size += len(parts[-1])
        if size > INGRESS_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _no_model(model: str | None) -> JSONResponse:
    if model is None:
        message = 'the body must be a JSON object whose "model" is a text'
        return _error(400, message, "missing_model", field="model")
    return _error(404, f"the model {model[:80]!r} does not exist here", "model_not_found", field="model")


def _document(body: bytes) -> dict[str, Any]:
    """Empty for what is no JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _model_of(document: Mapping[str, Any]) -> str | None:
    model = document.get("model")
    return model if isinstance(model, str) and model else None


def _error(
    status: int, message: str, code: str, headers: dict[str, str] | None = None, *, field: str | None = None
) -> JSONResponse:
    """OpenAI's error object."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": field, "code": code}
    return JSONResponse({"error": error}, status, headers)
