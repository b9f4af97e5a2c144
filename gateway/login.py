"""The page's way in and out: ``/ui/login`` and ``/ui/session/end``."""

from __future__ import annotations

from importlib import resources
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.auth import LOGIN, Passwords
from gateway.sessions import Sessions, cookie, session_of
from gateway.views import HEADERS, TYPES

MAX_BYTES = 4096
_HEADERS = {**HEADERS, "cache-control": "no-store"}


class Login:
    """Handlers; without a password there is nothing to log in to, and both lead to the page."""

    def __init__(self, passwords: Passwords | None, sessions: Sessions | None) -> None:
        self._passwords = passwords
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route(LOGIN, self.form, methods=["GET"]),
            Route(LOGIN, self.log_in, methods=["POST"]),
            Route("/ui/session/end", self.log_out, methods=["POST"]),
        ]

    async def form(self, request: Request) -> Response:
        if self._passwords is None:
            return RedirectResponse("/ui/", 303)
        return _page(200)

    async def log_in(self, request: Request) -> Response:
        """Fields ``user`` and ``password`` of a form."""
        if self._passwords is None or self._sessions is None:
            return RedirectResponse("/ui/", 303)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                return PlainTextResponse(f"the form is larger than {MAX_BYTES} bytes", 413)
        try:
            fields = {name: values[0] for name, values in parse_qs(body.decode("ascii"), max_num_fields=10).items()}
        except ValueError:
            return PlainTextResponse("this is no form with user and password", 400)
        if not self._passwords.right(fields.get("user", "").encode(), fields.get("password", "").encode()):
            return _page(401)
        return RedirectResponse("/ui/", 303, {"set-cookie": cookie(self._sessions.begin(), secure=_secure(request))})

    async def log_out(self, request: Request) -> Response:
        if self._sessions is not None:
            self._sessions.end(session_of(request.headers.get("cookie", "")))
        return RedirectResponse(LOGIN, 303, {"set-cookie": cookie("", secure=_secure(request))})


def _page(status: int) -> Response:
    """The form; with 401 the sentence that it was wrong is shown."""
    text = resources.files("gateway").joinpath("ui", "login.html").read_text()
    if status == 401:
        text = text.replace('id="wrong" hidden', 'id="wrong"')
    return Response(text, status, _HEADERS, TYPES["index.html"])


def _secure(request: Request) -> bool:
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
