"""Looking up names of receivers, some of which nobody answers for."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gateway.names import AT_ONCE, AT_ONCE_PER_DOMAIN, KEPT, Infos, Names, owner_of

WAIT_S = 30.0


class NameServer:
    """Knows every name, and is silent about those in ``silent``."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.speaks = threading.Event()

    def __call__(self, host: str, family: int) -> Infos:
        self.asked.append(host)
        if host in self.silent:
            self.speaks.wait()
        if host.startswith("no."):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]


@pytest.fixture
def server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.speaks.set()


async def address(names: Names, host: str) -> tuple[str, int]:
    async with asyncio.timeout(WAIT_S):
        (found,) = await names.resolve(host, 81)
    return found["host"], found["port"]


async def hang(names: Names, server: NameServer, *hosts: str, asked: int) -> list[asyncio.Task[tuple[str, int]]]:
    """Callers of silent names; ``asked``: look-ups that then run."""
    server.silent |= set(hosts)
    tasks = [asyncio.create_task(address(names, host)) for host in hosts]
    async with asyncio.timeout(WAIT_S):
        while sum(host in server.silent for host in server.asked) < asked:
            await asyncio.sleep(0)
    return tasks


async def test_names_that_are_answered_are_looked_up_while_a_domain_is_silent(server: NameServer) -> None:
    names = Names(server)
    tasks = await hang(names, server, *[f"h{n}.slow.test" for n in range(100)], asked=AT_ONCE_PER_DOMAIN)
    assert await address(names, "good.test") == ("192.0.2.7", 81)
    assert len(server.asked) == AT_ONCE_PER_DOMAIN + 1
    server.speaks.set()
    assert await asyncio.gather(*tasks) == [("192.0.2.7", 81)] * 100


async def test_names_that_were_answered_before_have_look_ups_kept(server: NameServer) -> None:
    names = Names(server)
    await address(names, "good.test")
    tasks = await hang(names, server, *[f"h.slow{n}.test" for n in range(100)], asked=AT_ONCE - KEPT)
    assert await address(names, "good.test") == ("192.0.2.7", 81)
    assert len(server.asked) == AT_ONCE - KEPT + 2
    server.speaks.set()
    await asyncio.gather(*tasks)


async def test_a_name_is_looked_up_once_for_all_who_wait_and_goes_on_when_they_leave(server: NameServer) -> None:
    names = Names(server)
    (first,) = await hang(names, server, "h.test", asked=1)
    first.cancel()
    second = asyncio.create_task(address(names, "h.test"))
    await asyncio.wait([first])
    server.speaks.set()
    assert await second == ("192.0.2.7", 81)
    assert server.asked == ["h.test"]


async def test_a_name_without_an_address_is_an_error_each_time(server: NameServer) -> None:
    names = Names(server)
    for _ in range(3 * AT_ONCE):
        with pytest.raises(socket.gaierror):
            await address(names, "no.test")


async def test_where_no_thread_can_start_the_next_look_up_still_has_a_place(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = Names(server)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2 * AT_ONCE):
            with pytest.raises(OSError, match="new thread"):
                await address(names, "h.test")
    assert await address(names, "h.test") == ("192.0.2.7", 81)


@pytest.mark.slow
def test_a_process_ends_while_names_are_looked_up() -> None:
    program = """
import asyncio, threading
from gateway.names import Names
asked = threading.Event()
def silent(host, family):
    asked.set()
    threading.Event().wait()
async def main():
    task = asyncio.ensure_future(Names(silent).resolve("h.test"))
    while not asked.is_set():
        await asyncio.sleep(0)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::2", "2001:db8::/64"),
        ("localhost", "localhost"),
        ("A.b.Example.org.", "example.org"),
        ("a.\uff25xample.org", "example.org"),
    ],
)
def test_hosts_of_one_owner_count_together(host: str, owner: str) -> None:
    assert owner_of(host) == owner
