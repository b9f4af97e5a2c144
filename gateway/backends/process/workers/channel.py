"""Messages with file descriptors between the gateway, the warm parent and the replicas.

A channel is a pair of ``AF_UNIX`` ``SOCK_SEQPACKET`` sockets: the kernel keeps each message whole and its descriptors
with it. A message is one JSON object, at most ``MAX_BYTES``. Used on both sides of the fork, so it imports little.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MAX_BYTES = 160 * 1024
MAX_DESCRIPTORS = 8

Message = dict[str, Any]


class ChannelError(Exception):
    """A message is too large or is not what was agreed."""


class ChannelClosedError(ChannelError):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither inherited by programs."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; the caller keeps (and closes) its descriptors.

    Raises ChannelError (too large), ChannelClosedError (the other side is gone), BlockingIOError (full, non-blocking).
    """
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MAX_BYTES:
        raise ChannelError(f"a message of {len(payload)} bytes is over the limit of {MAX_BYTES}")
    ancillary = []
    if descriptors:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes()))
    try:
        sock.sendmsg([payload], ancillary, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError) as error:
        raise ChannelClosedError("the other side is gone") from error


def receive(sock: socket.socket) -> tuple[Message, list[int]]:
    """Next message and its descriptors (close-on-exec, owned by the caller).

    Raises ChannelClosedError at the end, BlockingIOError when nothing is there (non-blocking).
    """
    try:
        payload, descriptors, flags, _ = socket.recv_fds(sock, MAX_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError as error:
        raise ChannelClosedError("the other side is gone") from error
    if not payload:
        raise ChannelClosedError("the other side is gone")
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise ChannelError("a message was cut off")
    message = json.loads(payload)
    if not isinstance(message, dict):
        raise ChannelError("a message is not a JSON object")
    return message, descriptors
