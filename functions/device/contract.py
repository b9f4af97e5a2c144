"""What computes calls, as the host of a function's nodes sees it; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from functions.wire.layout import Chunk

CHECK_S = 2.0
"""An idle GPU is asked this often whether it is still there. After a fault of one MPS client the server takes no new
clients until all that shared the GPU have ended, so one that is idle must notice too."""

Values = Mapping[str, Any]
"""A call's or a reply's tensors by name, as the device computes with them: torch's or NumPy's."""


class DeviceLostError(Exception):
    """The device cannot be computed on by this process any more; the message gives the reason."""


class Program(Protocol):
    """A node that a device computes."""

    @property
    def id(self) -> str: ...

    def check(self, tensors: Any) -> None:
        """Raises ``moe.errors.ProgramInputError`` for tensors ``[tokens, …]`` that are not what the node takes."""

    def made_up(self, tokens: int) -> Any:
        """A call ``[tokens, …]`` that it takes, for a rehearsal."""


class Device(Protocol):
    """Reads, computes and writes calls. ``run`` and ``check`` are called by one thread at a time."""

    in_thread: bool
    """Calls may hang and never run on the event loop."""
    deadline_s: float
    """Time a call may take before the device counts as lost."""

    def decode(self, body: bytearray) -> dict[str, Any]:
        """The tensors of a message, ``[shapes in its header]``. Raises WireError."""

    def encode(self, reply: Any) -> list[Chunk]:
        """A reply's tensors ``[any shape]`` as chunks of a message."""

    def run(self, program: Any, calls: Sequence[Values], all_logits: bool) -> Sequence[Values]:
        """One reply for each of ``calls`` (checked, on the host), on the host. Raises DeviceLostError.

        Tensors' first axis is tokens, ``[tokens, …]``, or texts for ``lengths`` and per-text results.
        """

    def check(self) -> None:
        """Raises DeviceLostError when the device is not there any more."""
