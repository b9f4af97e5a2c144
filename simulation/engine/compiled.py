"""Numba's compiler, typed. Results do not depend on the machine: no fast mathematics, no threads, strict IEEE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ROOM = tuple(
    (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(__file__).parent.glob("*.py"))
)


def compiled(function: _Function) -> _Function:
    """Machine code of ``function``, made at its first call and kept next to its file; runs without the interpreter
    lock.

    Numba compiles it again when the function's own file changes; here any file of this room counts, since functions of
    several files end up in each other.
    """
    dispatcher: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    kept = dispatcher._cache._cache_file
    kept._source_stamp = (kept._source_stamp, _ROOM)
    return cast(_Function, dispatcher)


def inner(function: _Function) -> _Function:
    """For functions that only compiled code calls: nothing is made for callers from Python, which takes longest."""
    unwrapped: dict[str, Any] = {"no_cpython_wrapper": True}
    return cast(_Function, numba.njit(nogil=True, error_model="numpy", **unwrapped)(function))


def inlined(function: _Function) -> _Function:
    """For small functions with arrays as arguments: part of whoever calls them, since handing arrays over costs more
    than what they do."""
    return cast(_Function, numba.njit(inline="always", error_model="numpy")(function))
