"""Leases over the socket of a node: real connections and processes, GPUs played by files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.device import leases
from functions.device.leases import DONE, MAX_LINE, SOCKET, Lease, LeaseError
from functions.memory import lending
from functions.memory.device_regions import DeviceRegions
from functions.memory.lending import Lending
from functions.memory.regions import Regions
from tests.doubles.fake_gpu import FakeMemory
from tests.parameters import examples
from tests.unit.functions.conftest import turns
from tests.unit.functions.memory.test_device_regions import A, filled

QUESTION = leases.ask("p/one", A)


@dataclass
class Node:
    folder: Path
    memory: FakeMemory
    devices: DeviceRegions
    lending: Lending

    def leases(self) -> int:
        return sum(one["leases"] for one in self.devices.held())

    async def until(self, condition: Callable[[Node], bool]) -> None:
        async with asyncio.timeout(100):
            while not condition(self):
                await asyncio.sleep(0.002)

    async def say(self, data: bytes) -> bytes:
        """What the manager answers to these bytes, up to its line's end or its own."""
        with self.connected() as connection:
            await asyncio.get_running_loop().sock_sendall(connection, data)
            return await line(connection)

    def connected(self) -> socket.socket:
        connection = leases.connect(self.folder, 10.0)
        connection.setblocking(False)
        return connection


async def line(connection: socket.socket) -> bytes:
    found = b""
    async with asyncio.timeout(100):
        while not found.endswith(b"\n"):
            piece = await asyncio.get_running_loop().sock_recv(connection, MAX_LINE)
            if not piece:
                break
            found += piece
    return found


async def lease(node: Node) -> socket.socket:
    """A lease of this process."""
    connection = node.connected()
    await asyncio.get_running_loop().sock_sendall(connection, QUESTION)
    leases.lent(await line(connection))
    return connection


@asynccontextmanager
async def lends(tmp_path: Path, folder: str = "node", **options: float) -> AsyncIterator[Node]:
    regions = filled(tmp_path, "p/one") if folder == "node" else Regions(tmp_path / folder)
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(regions, memory)
    lending = Lending(regions.folder, devices, **options)  # type: ignore[arg-type]
    lending.start()
    try:
        yield Node(regions.folder, memory, devices, lending)
    finally:
        await lending.close()


async def test_a_handle_names_memory_with_the_regions_bytes(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        lent = leases.lent(await node.say(QUESTION))
        path = node.memory.folder / lent.handle.rstrip(b"\0").decode()
        assert path.read_bytes()[: lent.nbytes] == Regions(node.folder).path("p/one").read_bytes()


async def test_only_the_managers_own_user_reaches_its_socket(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        assert stat.S_IMODE((node.folder / SOCKET).stat().st_mode) == 0o600


async def test_a_lease_lasts_until_the_worker_says_that_it_maps_nothing(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        first, second = await lease(node), await lease(node)
        assert node.leases() == 2
        with first, second:
            first.sendall(DONE)
        await node.until(lambda node: node.leases() == 1)
        node.devices.released("p/one")  # the other closed its connection, but this process lives and may map still
        await turns()
        assert (node.leases(), node.memory.counts["free"]) == (1, 0)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_lease_ends_with_its_process_however_that_ends(tmp_path: Path, killed: bool) -> None:
    async with lends(tmp_path) as node:
        child = _borrowing_process(node.folder)
        await node.until(lambda node: node.leases() == 1)
        node.devices.released("p/one")
        assert node.memory.counts["free"] == 0
        os.kill(child, 9 if killed else 15)
        await node.until(lambda node: node.memory.counts["free"] == 1)
        os.waitpid(child, 0)


def _borrowing_process(folder: Path) -> int:
    """A process that takes a lease and waits for a signal."""
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another test's handler may have come along
        connection = leases.connect(folder, 20.0)
        connection.sendall(QUESTION)
        connection.recv(MAX_LINE)
        connection.recv(1)
    finally:
        os._exit(1)


async def test_when_the_manager_stops_every_worker_sees_its_connection_closed(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        connection = await lease(node)
    with connection:
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 1), 100) == b""
    assert not (tmp_path / "node" / SOCKET).exists()
    assert node.memory.counts["free"] == 0


async def test_an_ordered_end_waits_for_those_who_have_something_and_lends_to_nobody_else(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        with await lease(node) as connection:
            draining = asyncio.ensure_future(node.lending.drain(10.0))
            await turns()
            assert not draining.done()
            with pytest.raises(FileNotFoundError):
                node.connected()
            connection.sendall(DONE)
        await asyncio.wait_for(draining, 100)


async def test_an_ordered_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        with await lease(node):
            await asyncio.wait_for(node.lending.drain(0.02), 100)
            assert node.leases() == 1  # it was not given back


async def test_a_successor_takes_over_and_keeps_its_socket_when_the_old_one_ends(tmp_path: Path) -> None:
    async with lends(tmp_path) as old:
        successor = Lending(old.folder, old.devices)
        successor.start()
    assert (tmp_path / "node" / SOCKET).exists()
    await successor.close()
    assert not (tmp_path / "node" / SOCKET).exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"what\n", "this is no JSON", id="no JSON"),
        pytest.param(b"[1]\n", "another kind of JSON", id="no object"),
        pytest.param(b"{}\n", "names a region and the UUID of a GPU", id="empty"),
        pytest.param(b'{"name": 3, "gpu": "GPU-a"}\n', "names a region", id="a number"),
        pytest.param(b'{"name": "p/one", "gpu": "../a"}\n', "names a region", id="no GPU"),
        pytest.param(leases.ask("p/none", A), "p/none is not in the memory of this node", id="not held"),
        pytest.param(leases.ask("../one", A), "names are PIPELINE/FILE", id="outside"),
        pytest.param(leases.ask("p/one\0", A), "names are PIPELINE/FILE", id="NUL"),
        pytest.param(b"x" * (MAX_LINE + 1), "at most 2048 bytes", id="too long"),
        pytest.param(QUESTION + b"more\n", "no JSON", id="two lines"),
    ],
)
async def test_a_request_that_cannot_be_met_gets_a_sentence_and_harms_nobody(
    tmp_path: Path, data: bytes, says: str
) -> None:
    async with lends(tmp_path) as node:
        assert says in json.loads(await node.say(data))["error"]
        assert leases.lent(await node.say(QUESTION)).nbytes == 100


async def test_a_silent_client_gets_an_answer_and_is_cut_off(tmp_path: Path) -> None:
    async with lends(tmp_path, ask_s=0.02) as node:
        assert "no request came within 0.02 s" in json.loads(await node.say(QUESTION[:5]))["error"]


async def test_who_goes_away_in_mid_request_takes_nothing_along(tmp_path: Path) -> None:
    async with lends(tmp_path) as node:
        node.connected().close()
        with node.connected() as connection:
            connection.sendall(QUESTION[:5])
        with node.connected() as connection:
            connection.sendall(QUESTION + DONE)  # closes unread
        assert leases.lent(await node.say(QUESTION)).nbytes == 100


async def test_there_are_no_more_leases_than_allowed(tmp_path: Path) -> None:
    async with lends(tmp_path, most=2) as node:
        with await lease(node), await lease(node):
            assert "there are 2 leases already" in json.loads(await node.say(QUESTION))["error"]


async def test_processes_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending.os, "geteuid", lambda: os.getuid() + 1)
    async with lends(tmp_path) as node:
        assert "own user" in json.loads(await node.say(QUESTION))["error"]


async def test_the_folder_may_have_a_long_path(tmp_path: Path) -> None:
    folder = "long" * 40
    async with lends(tmp_path, folder) as node:
        assert len(str(node.folder)) > 150
        assert "not in the memory" in json.loads(await node.say(QUESTION))["error"]
        assert (node.folder / SOCKET).stat().st_mode & 0o777 == 0o600


def test_the_process_at_the_other_end_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert leases.peer(one) == (os.getpid(), os.getuid())


async def test_where_ends_of_processes_are_not_to_be_seen_a_lease_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lending.os, "pidfd_open", none)
    async with lends(tmp_path) as node:
        (await lease(node)).close()
        await node.until(lambda node: node.leases() == 0)
    assert "a lease ends with its connection" in caplog.text


async def test_without_a_descriptor_for_its_end_a_process_gets_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(pid: int) -> int:
        raise OSError(24, "Too many open files")

    async with lends(tmp_path) as node:
        monkeypatch.setattr(lending.os, "pidfd_open", too_many)
        assert "cannot be awaited: Too many open files" in json.loads(await node.say(QUESTION))["error"]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.binary(max_size=40) | st.just(QUESTION) | st.just(DONE) | st.just(b"\n"), max_size=5))
def test_any_bytes_leave_the_socket_usable(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("lending")

    async def story() -> None:
        async with lends(folder) as node:
            with node.connected() as connection:
                connection.sendall(b"".join(pieces))
            assert leases.lent(await node.say(QUESTION)).nbytes == 100

    asyncio.run(story())


@given(
    st.binary(max_size=80)
    | st.text(max_size=40).map(lambda text: json.dumps({"handle": text, "bytes": 1}).encode() + b"\n")
)
def test_any_answer_is_a_lease_or_a_sentence(data: bytes) -> None:
    try:
        lent = leases.lent(data)
    except LeaseError as error:
        assert str(error)
    else:
        assert len(lent.handle) == leases.HANDLE_BYTES


@given(st.text(max_size=2000))
def test_any_sentence_arrives_in_one_line_that_is_not_too_long(sentence: str) -> None:
    data = leases.refuse(sentence)
    assert len(data) <= MAX_LINE
    with pytest.raises(LeaseError):
        leases.lent(data)


def test_what_is_lent_arrives_as_it_was_said() -> None:
    assert leases.lent(leases.lend(bytes(range(64)), 7)) == Lease(bytes(range(64)), 7)
    assert leases.asked(leases.ask("p/one", A)) == ("p/one", A)
    with pytest.raises(LeaseError, match="too many"):
        leases.ask("x" * MAX_LINE, A)
