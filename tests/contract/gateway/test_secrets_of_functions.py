"""Functions find their secrets where OpenFaaS mounts them, and nothing on the machine changes by it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.backends.process.secret import mount as secret_mount
from gateway.contract import DEFAULT_NAMESPACE, Backend, FunctionSpec
from tests.contract.gateway.conftest import process
from tests.unit.gateway.process.conftest import ask

allowed = pytest.mark.skipif(not secret_mount.possible(), reason="no CAP_SYS_ADMIN: no mount namespaces")

INSIDE = """
import os, sys
from pathlib import Path
from gateway.backends.process.secret import mount as secret_mount
folder, target = map(Path, sys.argv[1:3])
secret_mount.enter(folder, target)
for path in map(Path, sys.argv[3:]):
    print(path.read_text() if path.is_file() else sorted(os.listdir(path)))
"""


def inside(folder: Path, target: Path, *shown: Path) -> list[str]:
    """What a process sees at ``shown`` once ``folder`` is at ``target``."""
    words = map(str, (folder, target, *shown))
    completed = subprocess.run(
        [sys.executable, "-c", INSIDE, *words], capture_output=True, text=True, check=True, timeout=60
    )
    return completed.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "state" / "mounts" / "f"
    made.mkdir(parents=True)
    (made / "key").write_text("s3cret")
    return made


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    async with process(tmp_path / "state") as case:
        yield case.backend


async def answer(backend: Backend, name: str) -> tuple[int, bytes]:
    async with asyncio.timeout(100):
        while not (ready := backend.get(name, DEFAULT_NAMESPACE).ready):
            await backend.wait_change(backend.version(), 1.0)
    status, _, body = await ask(ready[0].address)
    return status, body


def reading(name: str, secret: str, *own: str) -> FunctionSpec:
    return FunctionSpec(name, "any/image", env_process=f"cat {secret_mount.SECRETS}/{secret}", secrets=own)


@pytest.mark.slow
@allowed
async def test_a_command_reads_its_secret_at_openfaas_path_and_the_new_value_once_it_changes(backend: Backend) -> None:
    before = secret_mount.SECRETS.exists()
    await backend.put_secret("key", DEFAULT_NAMESPACE, b"s3cret", create=True)
    await backend.create(reading("f", "key", "key"), 1)
    assert await answer(backend, "f") == (200, b"s3cret")
    await backend.put_secret("key", DEFAULT_NAMESPACE, b"newer", create=False)
    assert await answer(backend, "f") == (200, b"newer")
    assert secret_mount.SECRETS.exists() == before


@allowed
async def test_a_function_does_not_see_the_secrets_of_others(backend: Backend) -> None:
    for name in ("mine", "theirs"):
        await backend.put_secret(name, DEFAULT_NAMESPACE, name.encode(), create=True)
    await backend.create(reading("f", "theirs", "mine"), 1)
    await backend.create(reading("g", "theirs"), 1)
    assert (await answer(backend, "f"))[0] == 500
    assert (await answer(backend, "g"))[0] == 500


@allowed
@pytest.mark.parametrize("above", ["", "openfaas", "openfaas/secrets"])
def test_the_path_is_made_for_the_process_alone(tmp_path: Path, folder: Path, above: str) -> None:
    anchor = tmp_path / "var"
    (anchor / "lib").mkdir(parents=True)
    (anchor / "lib" / "file").write_text("kept")
    (anchor / "note").write_text("kept too")
    (anchor / "link").symlink_to("lib")
    (anchor / above).mkdir(parents=True, exist_ok=True)
    target = anchor / "openfaas" / "secrets"
    before = sorted(anchor.rglob("*"))
    shown = (target, target / "key", anchor, anchor / "link" / "file", anchor / "note", folder)
    assert inside(folder, target, *shown) == [
        "['key']",
        "s3cret",
        "['lib', 'link', 'note', 'openfaas']",
        "kept",
        "kept too",
        "['key']",
    ]
    assert sorted(anchor.rglob("*")) == before


@pytest.mark.parametrize(
    ("status", "able"),
    [
        ("Name:\tx\nCapEff:\t000001ffffffffff\n", True),
        ("CapEff:\t0000000000200000\n", True),
        ("CapEff:\t00000000a80425fb\n", False),
        ("CapEff:\t0000000000000000\n", False),
        ("Name:\tx\n", False),
    ],
)
def test_the_right_to_mount_is_read_from_the_kernel(tmp_path: Path, status: str, able: bool) -> None:
    path = tmp_path / "status"
    path.write_text(status)
    assert secret_mount.possible(path) == able
    assert secret_mount.possible(tmp_path / "absent") is False


async def test_where_it_cannot_be_done_the_gateway_notes_it(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for able in (True, False):
        monkeypatch.setattr(secret_mount, "possible", lambda able=able: able)
        said = any("/var/openfaas/secrets" in note for note in backend.info().notes)
        assert said is not able
