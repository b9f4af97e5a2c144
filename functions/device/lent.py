"""Weights that are on a worker's GPU already: leases from the node's weights manager, mapped, never copied.

The mapping and the connection, which is the lease, live as long as the process. When the manager's end of a connection
closes, the memory behind it may go: the worker must end (``Lender.gone``).
"""

from __future__ import annotations

import logging
import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from functions.device import leases
from functions.device.cuda_calls import CudaOpener
from functions.device.leases import LeaseError
from functions.wire.tensor_views import HeaderError, Place, read_places, views

log = logging.getLogger(__name__)

ANSWER_S = 20.0
"""Time for a manager's answers to one worker, all together; it may have to copy regions first. Less than a worker has
for its start (60 s)."""
SUCCESSOR_S = 5.0
"""Time for the successor of a manager that was killed."""
_AGAIN_S = 0.05


@dataclass(frozen=True)
class _Mapped:
    whole: Tensor
    places: dict[str, Place]


class Lender:
    """Tensors of regions in ``folder``, the node's memory folder, on the GPU of ``opener``. For one thread."""

    def __init__(
        self, folder: Path, opener: CudaOpener, answer_s: float = ANSWER_S, successor_s: float = SUCCESSOR_S
    ) -> None:
        self._folder = folder
        self._opener = opener
        self._answer_s = answer_s
        self._successor_s = successor_s
        self._until_s: float | None = None
        """When all answers must have come, by the monotonic clock; from the first question on."""
        self._mapped: dict[Path, _Mapped] = {}
        self._leases = select.poll()
        """Their connections."""
        self._given_up = False

    def tensors(self, path: Path, prefix: str = "") -> dict[str, Tensor] | None:
        """Tensors ``[the file's shapes]`` whose names start with ``prefix``, without it, as views of lent memory.

        None where they are not lent, which the log explains: whoever asks copies them.
        """
        if self._given_up or not path.is_relative_to(self._folder):
            return None
        try:
            mapped = self._mapped.get(path) or self._map(path)
        except FileNotFoundError:
            self._given_up = True  # the answer for all files
            log.warning("weights are copied to the GPU, not mapped there: no weights manager lends here")
            return None
        except (LeaseError, HeaderError, OSError) as error:
            log.warning("%s is copied to the GPU, not mapped there: %s", path.name, error)
            return None
        return views(mapped.whole, mapped.places, prefix)

    def gone(self) -> str:
        """Why lent memory may not be there any more; empty as long as it is. One call of the kernel."""
        if not self._mapped or not self._leases.poll(0):
            return ""
        return "the weights manager whose memory this worker maps has ended"

    def _map(self, path: Path) -> _Mapped:
        """Raises LeaseError, HeaderError, OSError."""
        try:
            places, nbytes = read_places(path)
        except OSError as error:
            raise LeaseError(f"it cannot be read: {error}") from error
        question = leases.ask(path.relative_to(self._folder).as_posix(), self._opener.gpu())
        connection = self._connected()
        try:
            connection.sendall(question)
            lease = leases.lent(self._line(connection))
            if lease.nbytes != nbytes:
                raise LeaseError(f"{lease.nbytes} bytes are lent, the file has {nbytes}")
            whole = self._opener.open(lease.handle, nbytes)
        except BaseException:
            _let_go(connection)
            raise
        log.info("%s is mapped on the GPU: %d bytes of the weights manager's", path.name, nbytes)
        self._leases.register(connection.detach(), select.POLLIN | select.POLLRDHUP)  # open until the process ends
        self._mapped[path] = _Mapped(whole, places)
        return self._mapped[path]

    def _connected(self) -> socket.socket:
        """A manager that was killed leaves its socket: its successor is waited for. Raises LeaseError, OSError."""
        until_s = time.monotonic() + min(self._successor_s, self._left_s())
        while True:
            try:
                return leases.connect(self._folder, self._left_s())
            except ConnectionRefusedError:
                if time.monotonic() >= until_s:
                    raise
                _pause()

    def _line(self, connection: socket.socket) -> bytes:
        """Raises LeaseError, OSError."""
        line = b""
        while not line.endswith(b"\n"):
            connection.settimeout(self._left_s())
            piece = connection.recv(leases.MAX_LINE + 1 - len(line))
            if not piece:
                raise LeaseError("the weights manager closed the connection")
            line += piece
            if len(line) > leases.MAX_LINE:
                raise LeaseError("the weights manager's answer has no end")
        return line

    def _left_s(self) -> float:
        """Seconds for all that is still to be asked. Raises LeaseError when there are none."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._answer_s
        if now_s >= self._until_s:
            raise LeaseError(f"the weights manager took more than {self._answer_s:g} s over this worker's files")
        return self._until_s - now_s


def _pause() -> None:
    time.sleep(_AGAIN_S)


def _let_go(connection: socket.socket) -> None:
    """Nothing is mapped."""
    try:
        connection.sendall(leases.DONE)
    except OSError:
        log.debug("the weights manager was gone first")
    finally:
        connection.close()
