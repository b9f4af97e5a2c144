"""The words of device leases: a worker asks its node's weights manager for a region that lies on its GPU already.

They are spoken on ``device.sock``, a Unix-domain socket in the node's memory folder, one JSON line each way:

    worker  → {"name": "PIPELINE/FILE", "gpu": "GPU-…"}
    manager → {"handle": "128 hexadecimal digits", "bytes": N}    or    {"error": "a sentence"}, and the end

The connection, held open, is the lease. It ends with the worker's process; a worker that goes on without the memory
sends ``done`` before it closes, once nothing of it maps the memory any more. A closed connection alone is not enough: a
process that is killed may lose its sockets before its mappings, and memory that somebody maps must not be freed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET = "device.sock"
HANDLE_BYTES = 64
"""Size of a handle, CUDA_IPC_HANDLE_SIZE."""
MAX_LINE = 2048
"""Bytes of a line, its end included."""
LONGEST_SENTENCE = 320
"""Characters; each takes six bytes of a line at most."""
DONE = b"done\n"
_PEER = "iII"
"""The kernel's ``struct ucred``: process, user and group id."""
BACKLOG = 128
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_HANDLE = re.compile(rf"[0-9a-f]{{{2 * HANDLE_BYTES}}}")


class LeaseError(Exception):
    """A lease cannot be had; the message gives the reason."""


@dataclass(frozen=True)
class Lease:
    """What a worker maps: ``handle`` for ``nbytes`` bytes of its GPU's memory, the region from its first byte on."""

    handle: bytes
    nbytes: int


def ask(name: str, gpu: str) -> bytes:
    """A worker's line: the region ``PIPELINE/FILE`` on the GPU with this UUID. Raises LeaseError for a longer one."""
    line = json.dumps({"name": name, "gpu": gpu}).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise LeaseError(f"the region's name has {len(name)} characters, too many for a request of {MAX_LINE} bytes")
    return line


def asked(line: bytes) -> tuple[str, str]:
    """Region and GPU of a worker's line. Raises LeaseError."""
    fields = _object(line)
    name, gpu = fields.get("name"), fields.get("gpu")
    if not isinstance(name, str) or not isinstance(gpu, str) or _GPU.fullmatch(gpu) is None:
        raise LeaseError("a request names a region and the UUID of a GPU, as name and gpu")
    return name, gpu


def lend(handle: bytes, nbytes: int) -> bytes:
    """The manager's line for a region that is there."""
    return json.dumps({"handle": handle.hex(), "bytes": nbytes}).encode() + b"\n"


def refuse(sentence: str) -> bytes:
    """The manager's line for everything else."""
    plain = sentence.encode("ascii", "replace").decode()[:LONGEST_SENTENCE]
    return json.dumps({"error": plain}).encode() + b"\n"


def lent(line: bytes) -> Lease:
    """The content of the manager's line. Raises LeaseError, with the manager's sentence where it sent one."""
    fields = _object(line)
    if isinstance(fields.get("error"), str):
        raise LeaseError(fields["error"])
    handle, nbytes = fields.get("handle"), fields.get("bytes")
    if not isinstance(handle, str) or _HANDLE.fullmatch(handle) is None:
        raise LeaseError("the weights manager sent no handle")
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes <= 0:
        raise LeaseError("the weights manager did not say how many bytes it lends")
    return Lease(bytes.fromhex(handle), nbytes)


def _object(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n") or len(line) > MAX_LINE:
        raise LeaseError(f"a line has at most {MAX_LINE} bytes and an end")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise LeaseError("a line is one JSON object; this is no JSON") from None
    if not isinstance(document, dict):
        raise LeaseError("a line is one JSON object; this is another kind of JSON")
    return document


def listen(folder: Path) -> socket.socket:
    """The folder's socket, in place of one that is there: a manager's successor takes over. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = f"{SOCKET}.{os.getpid()}"
    try:
        with _reached(folder, fresh) as path:
            Path(path).unlink(missing_ok=True)
            listener.bind(path)
            Path(path).chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        (folder / fresh).replace(folder / SOCKET)
    except BaseException:
        listener.close()
        (folder / fresh).unlink(missing_ok=True)
        raise
    return listener


def connect(folder: Path, timeout_s: float) -> socket.socket:
    """A connection to the folder's manager, whose operations take ``timeout_s`` at most. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with _reached(folder, SOCKET) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user id of who connected. Raises OSError."""
    size = struct.calcsize(_PEER)
    pid, uid, _ = struct.unpack(_PEER, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


@contextlib.contextmanager
def _reached(folder: Path, name: str) -> Iterator[str]:
    """``name`` in ``folder`` by a short path: a socket's may have 107 bytes, and a folder's is anybody's guess."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
