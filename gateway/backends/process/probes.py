"""A lenient look at a replica's HTTP server. The process's own end is the real signal; this finds the stuck ones."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

Health = Literal["answers", "refuses", "silent"]


async def probe(address: str, timeout_s: float) -> Health:
    """``answers``: any HTTP reply to ``GET /_/health``; ``refuses``: no listener; ``silent``: anything else."""
    host, _, port = address.rpartition(":")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /_/health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            start = await reader.read(5)
    except ConnectionRefusedError:
        return "refuses"
    except (OSError, TimeoutError):
        return "silent"
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return "answers" if start == b"HTTP/" else "silent"
