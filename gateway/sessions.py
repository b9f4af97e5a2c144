"""Sessions of the page's users: a signed cookie in place of the browser's password prompt.

A cookie holds when it ends and a random number, signed by a key made of the password: the gateway keeps no list, so
sessions take no memory, every copy of a gateway knows them, and another password ends them all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from gateway.settings import Credentials

COOKIE = "smoe-session"
SESSION_S = 12 * 3600
MAX_REVOKED = 1000


class Sessions:
    """Makes and checks the cookie's value. ``clock``: Unix time."""

    def __init__(self, credentials: Credentials, clock: Callable[[], float] = time.time) -> None:
        self._key = hashlib.sha256(b"smoe session " + credentials.password.encode()).digest()
        self._clock = clock
        self._revoked: OrderedDict[str, None] = OrderedDict()

    def begin(self) -> str:
        """The value of a new session."""
        claim = f"{int(self._clock()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{claim}.{self._signature(claim)}"

    def holds(self, value: str) -> bool:
        """Whether a value is of a session of this gateway's password that has neither ended nor been given up."""
        claim, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(claim).encode()):
            return False
        return int(claim.partition(".")[0]) > self._clock() and claim not in self._revoked

    def end(self, value: str) -> None:
        """Give a session up; the last thousand are remembered, in this process."""
        if self.holds(value):
            self._revoked[value.rpartition(".")[0]] = None
            if len(self._revoked) > MAX_REVOKED:
                self._revoked.popitem(last=False)

    def _signature(self, claim: str) -> str:
        return hmac.new(self._key, claim.encode(), hashlib.sha256).hexdigest()


def session_of(header: str) -> str:
    """The session's value in a Cookie header, empty without one."""
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def cookie(value: str, *, secure: bool) -> str:
    """Set-Cookie for a session; an empty value removes it. Other sites' pages never send it, and no script reads it."""
    age = SESSION_S if value else 0
    return f"{COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
