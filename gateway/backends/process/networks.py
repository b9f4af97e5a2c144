"""Nodes with a network of their own: a namespace of the kernel's in which a node's replicas listen and call.

So what goes between two played nodes crosses a device that can be limited and watched, and what stays on a node does
not. Making namespaces, devices and limits is somebody else's work; here they are entered only (CAP_SYS_ADMIN).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gateway.backends.process import kernel
from gateway.contract import BackendError


@dataclass(frozen=True)
class Network:
    """Where replicas of a node live: the namespace's file (``/run/netns/NAME``) and the node's address inside."""

    namespace: str
    address: str


def parse_networks(entries: Iterable[str], nodes: Iterable[str]) -> dict[str, Network]:
    """From ``NODE=ADDRESS@FILE``. Raises BackendError naming the entry."""
    known, found = tuple(nodes), dict[str, Network]()
    for entry in entries:
        node, _, rest = entry.partition("=")
        address, _, namespace = rest.partition("@")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            address = ""
        if node not in known or node in found or not address or not namespace.startswith("/"):
            raise BackendError(
                f"network {entry[:80]!r} is not of the form NODE=ADDRESS@FILE with one of the nodes "
                f"{', '.join(known) or '(none given)'}, an IPv4 address and a namespace's file"
            )
        found[node] = Network(namespace, address)
    return found


def listen(network: Network, backlog: int) -> socket.socket:
    """A server socket inside the namespace, on a free port. Raises OSError. The caller's thread stays where it is."""

    def open_there() -> socket.socket:
        kernel.enter_network(network.namespace)
        return socket.create_server((network.address, 0), backlog=backlog)

    with ThreadPoolExecutor(1) as thread:  # a namespace is entered by one thread, which ends here
        return thread.submit(open_there).result()
