"""What a function that is a command may do: it is a user of its own, whom the gateway's files are closed to."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gateway.backends.process import users
from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.users import FIRST, LAST, CommandUsers
from gateway.contract import FunctionSpec
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, alive, ask, eventually, ready, spec, until

as_root = pytest.mark.skipif(not users.possible(), reason="this process may not become another user")

MAP = "         0          0 4294967295\n"
CAPABILITIES = "CapEff:\t00000000000000c1\n"


async def answer(backend: ProcessBackend, name: str, process: str, *secrets: str) -> tuple[int, bytes]:
    """Of one call to a new function that is this command."""
    await backend.create(FunctionSpec(name, "any/image", env_process=process, secrets=secrets), 1)
    status, _, body = await ask((await until(backend, name, ready(1))).ready[0].address)
    return status, body


@as_root
async def test_a_command_has_a_user_of_its_own_and_no_way_back(backend: ProcessBackend) -> None:
    seen = []
    for name in ("f", "g"):
        status, body = await answer(backend, name, "cat /proc/self/status")
        lines = dict(line.split(":\t", 1) for line in body.decode().splitlines() if ":\t" in line)
        assert (status, lines["NoNewPrivs"], lines["Groups"].strip()) == (200, "1", "")
        assert {int(lines[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        assert lines["Uid"] == lines["Gid"]
        seen += set(map(int, lines["Uid"].split()))
    assert len(set(seen)) == 2
    assert all(FIRST <= user <= LAST for user in seen)


@as_root
async def test_a_command_reads_its_secret_but_neither_the_state_folder_nor_another_ones(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        await backend.put_secret(name, NAMESPACE, name.encode(), create=True)
    run = backend._run.folder
    tmp_path.chmod(0o755)
    assert await answer(backend, "f", f"cat {run}/f.{NAMESPACE}/secrets/mine", "mine") == (200, b"mine")
    assert (await answer(backend, "g", f"cat {run}/f.{NAMESPACE}/secrets/mine", "theirs"))[0] == 500
    assert (await answer(backend, "h", f"cat {tmp_path}/state/secrets/functions/{NAMESPACE}/theirs"))[0] == 500
    assert (await answer(backend, "i", f"ls {run}"))[0] == 500


@as_root
async def test_a_command_does_not_read_its_gateway_s_environment(backend: ProcessBackend) -> None:
    assert (await answer(backend, "f", "cat /proc/self/environ"))[0] == 200
    address = backend.get("f", NAMESPACE).ready[0]
    assert (await answer(backend, "g", f"cat /proc/{address.pid}/environ"))[0] == 500


@pytest.mark.slow
@as_root
async def test_a_command_s_processes_end_with_their_parent_s(running: Starter) -> None:
    async with running() as backend:
        await answer(backend, "f", "cat")
        pid = backend.get("f", NAMESPACE).ready[0].pid
        assert pid is not None
        parent = backend.launcher.parent_pid
        assert parent is not None
        subprocess.run(["kill", "-9", str(parent)], check=True)
        await eventually(lambda: not alive(pid))


@pytest.mark.slow
async def test_where_commands_have_no_users_the_gateway_reports_it(running: Starter) -> None:
    for wanted in (True, False):
        async with running(command_users=wanted) as backend:
            reported = any("unprivileged" in note for note in backend.info().notes)
            assert reported is not (wanted and users.possible())


async def test_functions_of_known_images_keep_the_gateway_s_user(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    pid = (await until(backend, "f", ready(1))).ready[0].pid
    assert Path(f"/proc/{pid}").stat().st_uid == Path("/proc/self").stat().st_uid


@pytest.mark.slow
def test_users_are_given_once_and_given_back() -> None:
    given = CommandUsers(possible=True)
    numbers = {given.of(f"f{number}.ns") for number in range(LAST - FIRST + 1)}
    assert numbers == set(range(FIRST, LAST + 1))
    with pytest.raises(ValueError, match="all 4336 users"):
        given.of("one-more.ns")
    again = given.of("f7.ns")
    given.forget("f7.ns")
    assert given.of("one-more.ns") == again
    assert CommandUsers(possible=False).of("f.ns") is None


@pytest.mark.parametrize(
    ("status", "uid_map", "able"),
    [
        (CAPABILITIES, MAP, True),
        ("CapEff:\t00000000a80425fb\n", MAP, True),
        ("CapEff:\t0000000000000041\n", MAP, False),
        ("CapEff:\t0000000000000000\n", MAP, False),
        (CAPABILITIES, "0 1000 1\n", False),
        (CAPABILITIES, "0 1000 1\n1 100000 65536\n", True),
        (CAPABILITIES, "", False),
        ("Name:\tx\n", MAP, False),
    ],
)
def test_the_right_to_become_users_is_read_from_the_kernel(
    tmp_path: Path, status: str, uid_map: str, able: bool
) -> None:
    for name, text in {"status": status, "uid_map": uid_map, "gid_map": uid_map}.items():
        (tmp_path / name).write_text(text)
    assert users.possible(tmp_path) is able
    assert users.possible(tmp_path / "absent") is False


def test_the_watchdog_imports_nothing_once_it_serves() -> None:
    """It may be a user by then who cannot read where the packages are."""
    program = """
        import os, signal, socket, sys, threading
        from gateway.backends.watchdog import main
        listener = socket.create_server(("127.0.0.1", 0))
        def call():
            with socket.create_connection(listener.getsockname()) as client:
                client.sendall(b"POST / HTTP/1.1\\r\\nhost: t\\r\\ncontent-length: 2\\r\\n\\r\\nhi")
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
                new = {name.partition(".")[0] for name in set(sys.modules) - before}
                print(*sorted(new - sys.stdlib_module_names), flush=True)
            os._exit(0)
        before = set(sys.modules)
        main({"fprocess": "cat", **os.environ}, listener, lambda: threading.Thread(target=call).start())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100, check=True
    )
    assert ended.stdout.strip() == ""


@pytest.mark.slow
@as_root
async def test_commands_share_network_names_of_processes_and_what_all_users_may_read(backend: ProcessBackend) -> None:
    own = Path("/proc/self/ns/net").readlink()
    assert await answer(backend, "f", "readlink /proc/self/ns/net") == (200, f"{own}\n".encode())
    assert await answer(backend, "g", f"cat /proc/{os.getpid()}/comm") == (200, Path("/proc/self/comm").read_bytes())
    assert await answer(backend, "h", "cat /etc/passwd") == (200, Path("/etc/passwd").read_bytes())
