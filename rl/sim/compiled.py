"""Numba's compiler, typed. Results do not depend on the machine: no fast mathematics, no threads, strict IEEE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Machine code of ``function``, made at its first call and kept beside its file; runs without the interpreter lock.

    Numba does not notice changes of other files that a kept function calls into, so functions that call each other
    live in one file.
    """
    return cast(_Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: _Function) -> _Function:
    """For small functions with arrays as arguments: part of whoever calls them, since handing arrays over costs more
    than what they do."""
    return cast(_Function, numba.njit(inline="always", error_model="numpy")(function))
