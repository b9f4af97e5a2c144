"""What a browser sends for the page of another site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.auth import SameSite
from tests.unit.gateway.gateways import Running, gateway_on

FUNCTION = {"service": "planted", "image": "any"}


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_write_from_another_site_is_refused_although_the_password_is_right(
    running: Running, headers: dict[str, str]
) -> None:
    answer = await running.system("POST", "/system/functions", FUNCTION, **headers)
    assert answer.status == 403 and "another site" in answer.text
    assert "planted" not in (await running.system("GET", "/system/functions")).text


async def test_reading_and_the_gateways_own_page_and_programs_are_not_hindered(running: Running) -> None:
    assert (await running.system("GET", "/system/functions", **{"sec-fetch-site": "cross-site"})).status == 200
    # The client says Host: gateway.test; a proxy may have ended TLS in front.
    own_page = {"sec-fetch-site": "same-origin", "origin": "https://gateway.test"}
    for number, own in enumerate(({}, own_page, {"sec-fetch-site": "none"})):
        one = FUNCTION | {"service": f"own-{number}"}
        assert (await running.system("POST", "/system/functions", one, **own)).status == 202


async def test_without_a_password_a_site_whose_name_was_made_to_point_here_is_refused(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, basic_auth=False) as running:
        rebound = {"origin": "http://gateway.test", "sec-fetch-site": "same-origin"}  # as Host has it
        assert (await running.system("POST", "/system/functions", FUNCTION, **rebound)).status == 403
        assert (await running.system("POST", "/system/functions", FUNCTION)).status == 202


@pytest.mark.parametrize("host", [b"localhost:8080", b"127.0.0.1", b"127.8.0.1:1", b"[::1]:8080"])
async def test_without_a_password_the_page_of_this_machine_may_write(host: bytes) -> None:
    written: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        written.append(scope)

    headers = [(b"host", host), (b"origin", b"http://" + host), (b"sec-fetch-site", b"same-origin")]
    await SameSite(app, local=True)({"type": "http", "method": "POST", "headers": headers}, None, None)
    assert len(written) == 1
