"""Kubernetes quantities, as the kubernetes client library reads them."""

from __future__ import annotations

import math
from functools import lru_cache

from kubernetes.utils.quantity import parse_quantity as _parse


class QuantityError(ValueError):
    """Not a Kubernetes quantity."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> float:
    """``128Mi`` → bytes, ``500m`` → 0.5. Raises QuantityError."""
    try:
        found = float(_parse(str(text)))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, ArithmeticError) as error:
        raise QuantityError(f"{text!r} is not a Kubernetes quantity") from error
    if not math.isfinite(found):
        raise QuantityError(f"{text!r} is not a Kubernetes quantity")
    return found
