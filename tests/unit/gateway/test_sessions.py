"""The page's login: a form and a cookie in place of the browser's password prompt."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import COOKIE, MAX_REVOKED, SESSION_S, Sessions, session_of
from gateway.settings import Credentials
from tests.unit.gateway.client import Reply
from tests.unit.gateway.gateways import Running, Starter

CREDENTIALS = Credentials("admin", "secret", "feed", "key")
BROWSER = {"accept": "text/html,*/*", "sec-fetch-mode": "navigate"}
OWN = {"sec-fetch-site": "same-origin"}


async def log_in(running: Running, user: str, password: str, **headers: str) -> Reply:
    body = urlencode({"user": user, "password": password}).encode()
    return await running.call("POST", "/ui/login", body, **OWN, **headers)


async def session(running: Running) -> str:
    """The Cookie header of a new session."""
    answer = await log_in(running, running.credentials.user, running.credentials.password)
    assert (answer.status, answer.headers["location"]) == (303, "/ui/")
    return answer.headers["set-cookie"].partition(";")[0]


async def test_a_browser_is_sent_to_the_form_and_never_asked_for_the_password_by_itself(running: Running) -> None:
    answer = await running.call("GET", "/ui/", **BROWSER)
    assert (answer.status, answer.headers["location"]) == (303, "/ui/login")
    form = await running.call("GET", "/ui/login", **BROWSER)
    assert (form.status, "<form" in form.text, 'id="wrong" hidden' in form.text) == (200, True, True)
    for headers in ({"sec-fetch-mode": "cors"}, {"x-smoe-page": "1"}):
        fetched = await running.call("GET", "/system/view", **headers)
        assert (fetched.status, fetched.headers.get("www-authenticate")) == (401, None)
    program = await running.call("GET", "/system/functions")
    assert (program.status, program.headers["www-authenticate"]) == (401, 'Basic realm="Restricted"')


async def test_the_cookie_opens_page_and_api_and_is_kept_from_scripts_and_other_sites(running: Running) -> None:
    answer = await log_in(running, running.credentials.user, running.credentials.password)
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert set(attributes) == {"Path=/", f"Max-Age={SESSION_S}", "HttpOnly", "SameSite=Strict"}
    cookie = answer.headers["set-cookie"].partition(";")[0]
    for path in ("/ui/", "/ui/page.js", "/system/functions", "/system/view"):
        assert (await running.call("GET", path, cookie=cookie)).status == 200
    secure = await log_in(
        running, running.credentials.user, running.credentials.password, **{"x-forwarded-proto": "https"}
    )
    assert "Secure" in secure.headers["set-cookie"].split("; ")


@pytest.mark.parametrize(
    ("user", "password"), [("admin", "wrong"), ("admin", ""), ("", ""), ("other", "PASSWORD"), ("admin", "é\0")]
)
async def test_a_wrong_login_gets_the_form_again_and_no_cookie(running: Running, user: str, password: str) -> None:
    answer = await log_in(running, user, password.replace("PASSWORD", running.credentials.password))
    assert (answer.status, 'id="wrong" hidden' in answer.text, "set-cookie" in answer.headers) == (401, False, False)


@pytest.mark.parametrize(("body", "status"), [(b"x" * 5000, 413), (b"\xff=1", 400), (b"&".join([b"a=1"] * 99), 400)])
async def test_what_is_no_form_is_refused(running: Running, body: bytes, status: int) -> None:
    assert (await running.call("POST", "/ui/login", body, **OWN)).status == status


async def test_logging_out_ends_the_session_for_who_kept_the_cookie_too(running: Running) -> None:
    cookie, other = await session(running), await session(running)
    answer = await running.call("POST", "/ui/session/end", cookie=cookie, **OWN)
    assert (answer.status, answer.headers["location"]) == (303, "/ui/login")
    assert answer.headers["set-cookie"].startswith(f"{COOKIE}=;") and "Max-Age=0" in answer.headers["set-cookie"]
    assert (await running.call("GET", "/system/functions", cookie=cookie)).status == 401
    assert (await running.call("GET", "/system/functions", cookie=other)).status == 200


async def test_a_write_with_the_cookie_has_to_come_from_the_gateways_own_page(running: Running) -> None:
    cookie, function = await session(running), b'{"service": "f", "image": "any"}'
    for foreign in ({"sec-fetch-site": "cross-site"}, {"origin": "https://elsewhere.example"}):
        assert (await running.call("POST", "/system/functions", function, cookie=cookie, **foreign)).status == 403
    assert (await running.call("POST", "/system/functions", function, cookie=cookie)).status == 401
    for number, own in enumerate((OWN, {"origin": "http://gateway.test"})):
        body = function.replace(b'"f"', b'"f%d"' % number)
        assert (await running.call("POST", "/system/functions", body, cookie=cookie, **own)).status == 202


async def test_a_login_for_another_sites_page_is_refused(running: Running) -> None:
    assert (await running.call("POST", "/ui/login", b"", **{"sec-fetch-site": "cross-site"})).status == 403


async def test_without_a_password_the_form_leads_to_the_page(start: Starter) -> None:
    async with start(basic_auth=False) as running:
        for method in ("GET", "POST"):
            answer = await running.call(method, "/ui/login")
            assert (answer.status, answer.headers["location"]) == (303, "/ui/")
        assert (await running.call("GET", "/ui/", **BROWSER)).status == 200


def test_a_session_ends_after_its_time_and_with_another_password() -> None:
    now = 1000.0
    sessions = Sessions(CREDENTIALS, lambda: now)
    value = sessions.begin()
    assert sessions.holds(value)
    assert Sessions(CREDENTIALS, lambda: now).holds(value)
    assert not Sessions(Credentials("admin", "other", "feed", "key"), lambda: now).holds(value)
    now += SESSION_S - 1
    assert sessions.holds(value)
    now += 1
    assert not sessions.holds(value)


def test_sessions_given_up_are_remembered_in_a_bounded_number() -> None:
    sessions = Sessions(CREDENTIALS)
    values = [sessions.begin() for _ in range(MAX_REVOKED + 1)]
    for value in values:
        sessions.end(value)
    assert [sessions.holds(value) for value in (values[1], values[-1])] == [False, False]
    assert len(sessions._revoked) == MAX_REVOKED


@given(st.text(max_size=200) | st.from_regex(r"\A[0-9]{1,12}\.[0-9a-f]{32}\.[0-9a-f]{64}\Z"))
def test_no_made_up_value_is_a_session(value: str) -> None:
    assert not Sessions(CREDENTIALS).holds(value)


@given(st.text(max_size=200))
def test_any_cookie_header_is_read(header: str) -> None:
    assert isinstance(session_of(header), str)


def test_the_session_is_found_among_other_cookies() -> None:
    assert session_of(f"a=b; {COOKIE}=1.2.3; c=d") == "1.2.3"
    assert session_of("a=b") == ""


def test_logging_out_at_one_copy_of_a_gateway_leaves_the_session_at_the_others() -> None:
    now_s = 1e9
    one, other = (Sessions(CREDENTIALS, lambda: now_s) for _ in range(2))
    value = one.begin()
    one.end(value)
    assert (one.holds(value), other.holds(value)) == (False, True)
    now_s += SESSION_S
    assert not other.holds(value)
