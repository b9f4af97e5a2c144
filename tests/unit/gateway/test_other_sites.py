"""What a browser sends for the page of another site."""

from __future__ import annotations

import pytest

from tests.unit.gateway.gateways import Running

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
