"""Array types that simulation, evaluation and learning share; the docstring of each array states its axes and unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Tokens = NDArray[np.uint16]
"""Token counts: a request has fewer than 65,536 tokens."""
Calls = NDArray[np.uint32]
"""Indices of requests."""
Keys = NDArray[np.uint64]
"""Keys of streams of random draws."""
Marks = NDArray[np.uint8]
"""Small flags of requests or cells."""
