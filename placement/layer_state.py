"""One layer's layout while it is built, and how what works on it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Experts = NDArray[np.int32]
"""Numbers of experts, or of their replicas."""
Marks = NDArray[np.uint8]
"""1 where something holds."""
Pairs = NDArray[np.float32]
"""[experts, experts]: co-activations."""
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Numba's compilation without checks for division by zero (counts are at least 1): a third less to compile."""
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy")(function))


def inner(function: Function) -> Function:
    """The same for what only compiled code calls: nothing is made for callers from Python, which takes longest."""
    unwrapped: dict[str, Any] = {"no_cpython_wrapper": True}
    return cast(Function, njit(nogil=True, error_model="numpy", **unwrapped)(function))


@inner
def fullest(values: Floats) -> int:
    """The first of the greatest; ``values`` [nodes]."""
    best = 0
    for at in range(1, len(values)):
        if values[at] > values[best]:
            best = at
    return best


class State(NamedTuple):
    """One layer's layout while it is built."""

    held: NDArray[np.int32]
    """[nodes, slots]: expert in each slot, -1 free."""
    on: NDArray[np.uint8]
    """[nodes, experts]: 1 where the node holds the expert."""
    tokens: NDArray[np.float64]
    """[nodes]: sum of the replicas' shares of tokens."""
    near: NDArray[np.float64]
    """[nodes, experts]: co-activation of each expert with what the node holds."""
    pairs: NDArray[np.float64]
    """[nodes]: Eq. (1), co-activation over pairs on the node."""
