"""Connections of a client that has had an answer and sends nothing more; the attack runs it as a module.

A process of its own, so that its files and its work are not the gateway's. Prints one JSON object: how many were open
once all were made, and how many after ``--seconds``; fewer where the gateway closed some for newer ones.
"""

from __future__ import annotations

import json
import resource
import socket
import time
from contextlib import ExitStack

import click

SPARE_FILES = 100
TAKES_S = 300.0


def is_open(line: socket.socket) -> bool:
    """Whether the other side has not closed it; what came is dropped."""
    try:
        while line.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@click.command()
@click.argument("address")
@click.option("--count", default=5000)
@click.option("--seconds", default=60.0)
def main(address: str, count: int, seconds: float) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = address.partition(":")
    head = f"GET /healthz HTTP/1.1\r\nhost: {address}\r\n\r\n".encode()
    with ExitStack() as open_lines:
        lines = []
        for _ in range(min(count, hard - SPARE_FILES)):
            lines.append(open_lines.enter_context(socket.create_connection((host, int(port)), timeout=TAKES_S)))
            lines[-1].sendall(head)
            lines[-1].recv(65536)
            lines[-1].setblocking(False)
        held = sum(map(is_open, lines))
        time.sleep(seconds)
        print(json.dumps({"made": len(lines), "open": held, "open_at_end": sum(map(is_open, lines))}))


if __name__ == "__main__":
    main()
