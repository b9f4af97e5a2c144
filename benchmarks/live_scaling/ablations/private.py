"""A worker that maps no shared weights: it copies them into memory of its own (no shared allocation)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from functions import worker
from moe import runtime

_read_mapped = runtime.read_mapped


def read_private(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """As ``moe.runtime.read_mapped``, but every tensor [...] is a copy that this process alone has."""
    return {name: tensor.clone() for name, tensor in _read_mapped(path, prefix).items()}


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """``functions.worker:main`` with private weights."""
    runtime.read_mapped = read_private
    worker.main(environ, listener, ready)


def prepare(environ: Mapping[str, str]) -> Callable[[Mapping[str, str], socket.socket, Callable[[], None]], None]:
    """``functions.worker.prepare`` with private weights."""
    runtime.read_mapped = read_private
    return worker.prepare(environ)
