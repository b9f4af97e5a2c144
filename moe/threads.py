"""How many threads compute, for a block and not for the rest of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def computing_threads(count: int) -> Iterator[None]:
    """torch computes with ``count`` threads in the block, and with as many as before after it.

    Two threads that wait for each other at every small product, on cores that others want too, take ten times the time
    of one; so a number that is left behind is a fault.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
