"""The worker without ``prepare``: forked from the warm parent, but with nothing done ahead (no standbys)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from benchmarks.live_scaling.ablations import private


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """The worker with private weights, from a blank."""
    private.main(environ, listener, ready)
