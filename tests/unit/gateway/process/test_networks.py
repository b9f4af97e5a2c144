"""Replicas of a machine with a network of its own listen and call inside it, and nowhere else."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.backends.process.kernel import enter_network
from gateway.backends.process.networks import Network, parse_networks
from gateway.contract import BackendError
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ask_json, ready, spec, until

CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace whose loopback is up; kept by a descriptor alone."""

    def make() -> int:
        if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
            return -1
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    with ThreadPoolExecutor(1) as thread:
        descriptor = thread.submit(make).result()
    if descriptor < 0:
        pytest.skip("no network namespace can be made here (root only)")
    yield f"/proc/{os.getpid()}/fd/{descriptor}"
    os.close(descriptor)


async def test_a_replica_of_the_node_lives_in_its_network_and_is_reached_there(
    running: Starter, namespace: str, tmp_path: Path
) -> None:
    networks = {"b": Network(namespace, "127.0.0.1")}
    async with running(machines=("a", "b"), networks=networks, memory_root=tmp_path) as backend:
        await backend.create(spec("f", annotations={"smoe.placement": "a=1,b=1"}), 2)
        state = await until(backend, "f", ready(2))
        here = {replica.machine: replica.address for replica in state.ready}
        outside = await ask_json(here["a"], "/")

        def inside() -> object:
            enter_network(namespace)
            return asyncio.run(ask_json(here["b"], "/"))

        assert outside["environ"]["smoe_machine"] == "a"
        seen_inside = await asyncio.to_thread(lambda: ThreadPoolExecutor(1).submit(inside).result())
        assert seen_inside["environ"]["smoe_machine"] == "b"  # type: ignore[index]
        pid = next(replica.pid for replica in state.ready if replica.machine == "b")
        assert Path(f"/proc/{pid}/ns/net").stat().st_ino == Path(namespace).stat().st_ino
        await backend.delete("f", NAMESPACE)


@pytest.mark.parametrize(
    "entry", ["a", "a=10.0.0.1", "a=x@/f", "a=10.0.0.1@f", "c=10.0.0.1@/f", "=10.0.0.1@/f", "a=::1@/f"]
)
def test_a_network_that_cannot_be_is_refused(entry: str) -> None:
    with pytest.raises(BackendError, match="MACHINE=ADDRESS@FILE"):
        parse_networks([entry], ("a", "b"))


def test_a_network_is_given_once_for_a_node() -> None:
    assert parse_networks(["a=10.0.0.1@/run/netns/x"], ("a", "b")) == {"a": Network("/run/netns/x", "10.0.0.1")}
    with pytest.raises(BackendError):
        parse_networks(["a=10.0.0.1@/f", "a=10.0.0.2@/g"], ("a",))
