"""Machines with a network of their own: a namespace of the kernel's in which a machine's replicas listen and call.

What goes between two emulated machines then crosses a device that can be limited and watched, and what stays on a
machine does not. Namespaces, devices and limits are set up by somebody else; this module only enters them
(CAP_SYS_ADMIN).
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
    """Where replicas of a machine live: the namespace's file (``/run/netns/NAME``) and the machine's address inside."""

    namespace: str
    address: str


def parse_networks(entries: Iterable[str], machines: Iterable[str]) -> dict[str, Network]:
    """Parse entries ``MACHINE=ADDRESS@FILE``. Raises BackendError naming the entry."""
    names, networks = tuple(machines), dict[str, Network]()
    for entry in entries:
        machine, _, rest = entry.partition("=")
        address, _, namespace = rest.partition("@")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            address = ""
        if machine not in names or machine in networks or not address or not namespace.startswith("/"):
            raise BackendError(
                f"network {entry[:80]!r} is not of the form MACHINE=ADDRESS@FILE with one of the machines "
                f"{', '.join(names) or '(none given)'}, an IPv4 address and a namespace's file"
            )
        networks[machine] = Network(namespace, address)
    return networks


def listen(network: Network, backlog: int) -> socket.socket:
    """A server socket inside the namespace, on a free port. Raises OSError. The caller's thread stays where it is."""

    def open_there() -> socket.socket:
        kernel.enter_network(network.namespace)
        return socket.create_server((network.address, 0), backlog=backlog)

    with ThreadPoolExecutor(1) as thread:  # a namespace is entered by one thread, which ends here
        return thread.submit(open_there).result()
