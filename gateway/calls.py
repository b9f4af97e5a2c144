"""A call on its way through the gateway and what came of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes]]
"""Names (in lower case) and values."""


def size_of(headers: Headers) -> int:
    """Bytes of names and values."""
    return sum(len(name) + len(value) for name, value in headers)


@dataclass
class Call:
    """A call on its way. ``rest`` yields the body after ``body`` when it was too large to hold.

    ``rest`` may raise BodyTooLargeError and ClientGoneError.
    """

    method: str
    function: str
    namespace: str
    path: bytes
    """Path and query as the function sees them."""
    headers: Headers
    body: bytes = b""
    rest: AsyncIterator[bytes] | None = None
    length: int | None = None
    """Bytes of the whole body, where the client declares it."""
    client: str = ""
    """``address:port`` of the client."""
    call_id: str = ""
    generated_id: bool = False
    started_ns: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        if not self.call_id:
            self.generated_id = True
            self.call_id = str(uuid.uuid4())

    @property
    def size(self) -> int:
        """Bytes of head and body that are held."""
        return len(self.path) + size_of(self.headers) + len(self.body)

    @property
    def key(self) -> str:
        """The function as ``NAME.NAMESPACE``."""
        return f"{self.function}.{self.namespace}"


@dataclass
class Outcome:
    """Status and headers of the reply, and its body: whole, or a stream that must be read to the end or closed.

    ``release`` must be called once, whatever happens.
    """

    status: int
    headers: Headers
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    release: Callable[[], None] = lambda: None


class BodyTooLargeError(Exception):
    """The request's body is over the limit."""


class ClientGoneError(Exception):
    """The client closed its connection before its request was whole."""
