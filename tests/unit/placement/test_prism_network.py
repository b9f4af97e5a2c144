"""Nodes as network namespaces: limited between each other, unlimited inside, and invisible from outside."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.prism_real.network import SWITCH, Node, NotPermittedError, become_switch, connect, measure

MBIT, TRIED = 200.0, 4 << 20


@pytest.fixture
def switch() -> Iterator[ThreadPoolExecutor]:
    """A thread in a network of its own; the test's own thread stays in the machine's."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(become_switch).result()
            thread.submit(connect, ["probe"], MBIT).result()
        except NotPermittedError as error:
            pytest.skip(error.message)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(become_switch).result()
        yield thread


def test_a_nodes_way_out_is_limited_and_its_inside_is_not(switch: ThreadPoolExecutor) -> None:
    def tried() -> tuple[float, float, tuple[Node, ...]]:
        nodes = connect(["a", "b"], MBIT)
        return measure(nodes[0], nodes[1], TRIED).mbit, measure(nodes[0], nodes[0], TRIED).mbit, nodes

    across, inside, nodes = switch.submit(tried).result()
    assert 0.5 * MBIT < across < 1.4 * MBIT
    assert inside > 1.4 * MBIT
    assert [node.address for node in nodes] == ["10.77.0.1", "10.77.0.2"]


def test_nothing_of_it_is_seen_outside(switch: ThreadPoolExecutor) -> None:
    switch.submit(connect, ["a"], MBIT).result()
    names = {name for _, name in socket.if_nameindex()}
    assert not names & {"switch", "port0", "uplink"}
    with pytest.raises(OSError):
        socket.create_server((SWITCH, 0))


def test_a_killed_run_leaves_nothing(switch: ThreadPoolExecutor) -> None:
    program = (
        "import sys; from benchmarks.prism_real.network import *; become_switch(); connect(['a', 'b'], 100.0);"
        "print('up', flush=True); sys.stdin.read()"
    )
    before = socket.if_nameindex(), _named()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdout.readline() == b"up\n"
        run.send_signal(signal.SIGKILL)
        assert run.wait(10) == -signal.SIGKILL
    assert (socket.if_nameindex(), _named()) == before


def _named() -> bytes:
    """Namespaces that have a name, which keeps them."""
    return subprocess.run(["ip", "netns", "list"], capture_output=True, check=True, timeout=100).stdout


def test_what_the_machine_refuses_is_reported_in_its_own_words(switch: ThreadPoolExecutor) -> None:
    switch.submit(connect, ["a"], MBIT).result()
    with pytest.raises(NotPermittedError, match=r"`ip link add switch .*` failed: .*exists"):
        switch.submit(connect, ["a"], MBIT).result()
