"""Who may use ``/system`` and ``/ui``: programs with the password (basic auth), and the page's users with the cookie of
a session, for which browsers are sent to the login form. The feed's bearer token opens the replica feed, in which
standbys are activated, and nothing else. Writes that a browser sends for another site's page are refused: a browser
adds cookie and password by itself, and a write may deploy a command."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from typing import Any

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from gateway.sessions import Sessions, session_of
from gateway.settings import Credentials
from gateway.views import OPEN_FILES

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_HERE = re.compile(rb"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
_FEED_PATHS = ("/system/replicas", "/system/targets")
LOGIN = "/ui/login"
_PAGE = b"x-smoe-page"
"""Sent by the page's own requests; browsers send ``Sec-Fetch-Mode`` over TLS and to loopback only."""
_OPEN_PATHS = (LOGIN, *(f"/ui/{name}" for name in OPEN_FILES))


class Passwords:
    """The user and password of the control API."""

    def __init__(self, credentials: Credentials) -> None:
        self._user, self._password = credentials.user.encode(), credentials.password.encode()

    def right(self, user: bytes, password: bytes) -> bool:
        right_user = hmac.compare_digest(user, self._user)
        return hmac.compare_digest(password, self._password) and right_user


class Auth:
    """ASGI middleware."""

    def __init__(self, app: Any, credentials: Credentials, sessions: Sessions) -> None:
        self._app = app
        self._passwords = Passwords(credentials)
        self._feed_token = credentials.feed_token.encode()
        self._sessions = sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        await _refusal(scope["path"], dict(scope["headers"]))(scope, receive, send)

    def _allowed(self, scope: Any) -> bool:
        headers = dict(scope["headers"])
        header = headers.get(b"authorization", b"")
        if not header and scope["path"] in _OPEN_PATHS:
            return True
        if not header and (given := session_of(headers.get(b"cookie", b"").decode("latin-1"))):
            return self._sessions.holds(given) and (scope["method"] in _SAFE or _same_site(headers))
        kind, _, value = header.partition(b" ")
        if kind.lower() == b"basic":
            try:
                user, _, password = base64.b64decode(value, validate=True).partition(b":")
            except (binascii.Error, ValueError):
                return False
            return self._passwords.right(user, password)
        if kind.lower() == b"bearer" and scope["path"] in _FEED_PATHS:
            return hmac.compare_digest(value.strip(), self._feed_token)
        return False


def _same_site(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser states where a request comes from; :class:`SameSite` has looked at what it states."""
    return b"sec-fetch-site" in headers or b"origin" in headers


def _refusal(path: str, headers: dict[bytes, bytes]) -> Response:
    """A browser that opens a page goes to the form, and never asks for the password by itself."""
    if path.startswith("/ui") and b"text/html" in headers.get(b"accept", b""):
        return RedirectResponse(LOGIN, 303)
    browser = b"sec-fetch-mode" in headers or _PAGE in headers
    challenge = {} if browser else {"www-authenticate": 'Basic realm="Restricted"'}
    return PlainTextResponse("invalid credentials", 401, challenge)


class SameSite:
    """ASGI middleware: 403 for writes whose ``Sec-Fetch-Site`` or ``Origin`` is of another site. Programs send neither.

    ``Origin`` is held to ``Host`` (host and port), so a proxy in front has to pass on ``Host`` as the browser sent it.
    """

    def __init__(self, app: Any, local: bool = False) -> None:
        """``local``: nobody is asked for a password, so the only site is this machine's: another site's name that was
        made to point here has an ``Origin`` that equals ``Host``, too."""
        self._app, self._local = app, local

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] in _SAFE or not _foreign(dict(scope["headers"]), self._local):
            await self._app(scope, receive, send)
            return
        why = "a page of another site may not change this gateway (Origin or Sec-Fetch-Site is not this gateway's)"
        await PlainTextResponse(why, 403)(scope, receive, send)


def _foreign(headers: dict[bytes, bytes], local: bool) -> bool:
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return True
    origin, host = headers.get(b"origin"), headers.get(b"host", b"").lower()
    if origin is None:
        return False
    return origin.partition(b"://")[2].lower() != host or (local and _HERE.fullmatch(host) is None)
