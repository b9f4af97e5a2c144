"""Basic auth on ``/system`` and ``/ui``; the feed's bearer token opens the replica feed, in which standbys are
activated, and nothing else. Writes that a browser sends for another site's page are refused: the browser adds the
password by itself, and a write may deploy a command."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Any

from starlette.responses import PlainTextResponse

from gateway.settings import Credentials

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_FEED_PATHS = ("/system/replicas", "/system/targets")


class Auth:
    """ASGI middleware."""

    def __init__(self, app: Any, credentials: Credentials | None) -> None:
        self._app = app
        self._credentials = credentials

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._credentials is None or scope["type"] != "http" or self._allowed(scope, self._credentials):
            await self._app(scope, receive, send)
            return
        headers = {"www-authenticate": 'Basic realm="Restricted"'}
        await PlainTextResponse("invalid credentials", 401, headers)(scope, receive, send)

    def _allowed(self, scope: Any, credentials: Credentials) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, value = header.partition(b" ")
        if kind.lower() == b"basic":
            try:
                user, _, password = base64.b64decode(value, validate=True).partition(b":")
            except (binascii.Error, ValueError):
                return False
            right_user = hmac.compare_digest(user, credentials.user.encode())
            return hmac.compare_digest(password, credentials.password.encode()) and right_user
        if kind.lower() == b"bearer" and scope["path"] in _FEED_PATHS:
            return hmac.compare_digest(value.strip(), credentials.feed_token.encode())
        return False


class SameSite:
    """ASGI middleware: 403 for writes whose ``Sec-Fetch-Site`` or ``Origin`` is of another site. Programs send neither.

    ``Origin`` is held to ``Host`` (host and port), so a proxy in front has to pass on ``Host`` as the browser sent it.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE or not _foreign(dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        why = "a page of another site may not change this gateway (Origin or Sec-Fetch-Site is not this gateway's)"
        await PlainTextResponse(why, 403)(scope, receive, send)


def _foreign(headers: dict[bytes, bytes]) -> bool:
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()
