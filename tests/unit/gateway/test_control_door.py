"""What the gateway reports about itself, and who may ask under ``/system``."""

from __future__ import annotations

import base64

import pytest

from tests.unit.gateway.gateways import Running, Starter


async def test_info_has_every_version_that_clients_read(running: Running) -> None:
    info = (await running.system("GET", "/system/info")).json()
    assert info["provider"]["provider"] == "smoe-fake"
    assert info["provider"]["orchestration"] == "memory"
    for version in (info["version"], info["provider"]["version"]):
        assert version["sha"] and version["release"]
    assert info["arch"]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/", 307),
        ("GET", "/nowhere", 401),
    ],
)
async def test_what_needs_no_password(running: Running, method: str, target: str, status: int) -> None:
    assert (await running.call(method, target)).status == status


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/system/telemetry", 404),
        ("GET", "/system/namespace/x", 404),
        ("POST", "/system/namespace/", 405),
        ("POST", "/system/namespace/other", 405),
        ("DELETE", "/system/namespace/openfaas-fn", 405),
        ("POST", "/system/info", 405),
        ("PATCH", "/system/functions", 405),
        ("GET", "/ui/none.js", 404),
        ("POST", "/ui/", 405),
        ("POST", "/system/view", 405),
        ("POST", "/system/instances", 405),
    ],
)
async def test_what_this_gateway_does_not_have(running: Running, method: str, target: str, status: int) -> None:
    assert (await running.system(method, target)).status == status


SYSTEM_PATHS = [
    "/system/functions",
    "/system/function/f",
    "/system/info",
    "/system/secrets",
    "/system/logs?name=f",
    "/system/namespaces",
    "/system/replicas",
    "/system/targets",
    "/system/view",
    "/system/instances",
    "/ui",
    "/ui/",
    "/ui/page.js",
    "/system//functions",
    "/%73ystem/functions",
]


@pytest.mark.parametrize("target", SYSTEM_PATHS)
@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer ",
        "Bearer wrong",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"admin:wrong").decode(),
        "Basic " + base64.b64encode(b"admin").decode(),
        "Basic " + base64.b64encode(b"admin:").decode(),
    ],
)
async def test_without_the_password_the_control_door_is_closed(
    running: Running, target: str, authorization: str
) -> None:
    answer = await running.call("GET", target, authorization=authorization)
    assert (answer.status, answer.text) == (401, "invalid credentials")
    assert answer.headers["www-authenticate"] == 'Basic realm="Restricted"'


async def test_the_feeds_token_opens_the_feed_and_nothing_else(running: Running) -> None:
    token = f"Bearer {running.credentials.feed_token}"
    for target in SYSTEM_PATHS:
        answer = await running.call("GET", target, authorization=token)
        assert (answer.status == 200) == (target in ("/system/replicas", "/system/targets")), target


async def test_without_basic_auth_an_empty_bearer_token_is_ignored(start: Starter) -> None:
    async with start(basic_auth=False) as running:
        assert (await running.call("GET", "/system/functions", authorization="Bearer ")).status == 200


async def test_passwords_are_made_once_kept_private_and_shown_nowhere(start: Starter) -> None:
    async with start() as running:
        first = running.credentials
        folder = running.gateway.settings.secrets_dir
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert first.password not in repr(first)
        assert first.feed_token not in repr(first)
    async with start() as running:
        assert running.credentials == first
