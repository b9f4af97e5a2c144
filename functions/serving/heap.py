"""Large blocks of memory go back to the system as soon as they are free, so that a worker needs what it holds.

By default glibc's threshold above which a block is a mapping of its own rises with the blocks that were freed, up to 32
MiB; messages and tensors of many calls then grow and shrink side by side in the heap, whose holes nobody else can use.
"""

from __future__ import annotations

import ctypes

LARGE_BYTES = 1024 * 1024
_M_MMAP_THRESHOLD = -3


def give_back_large_blocks() -> None:
    """Set the threshold for good; nothing happens where the C library has no ``mallopt``."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
