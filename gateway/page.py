"""The page at ``/ui/``: files of this package, and ``/system/view``, what it shows of controllers. Read-only."""

from __future__ import annotations

from importlib import resources

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.views import Views

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Page:
    """Handlers of ``/ui`` and ``/system/view``."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def routes(self) -> list[Route]:
        return [
            Route("/system/view", self.view, methods=["GET"]),
            Route("/ui", self.slash, methods=["GET"]),
            Route("/ui/", self.file, methods=["GET"]),
            Route("/ui/{file}", self.file, methods=["GET"]),
        ]

    async def view(self, request: Request) -> Response:
        data = orjson.dumps({"views": await self._views.read()})
        return Response(data, media_type="application/json", headers={"cache-control": "no-store"})

    async def slash(self, request: Request) -> Response:
        return RedirectResponse("/ui/", status_code=307)

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        if name not in TYPES:
            return PlainTextResponse("404 page not found", status_code=404)
        data = resources.files("gateway").joinpath("ui", name).read_bytes()
        return Response(data, media_type=TYPES[name], headers=HEADERS)
