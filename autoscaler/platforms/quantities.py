"""Kubernetes quantities as the floats that configurations hold."""

from __future__ import annotations

from functools import lru_cache

from platform_words.resources import QuantityError, parse_quantity


@lru_cache(maxsize=4096)
def float_quantity(text: str) -> float:
    """``128Mi`` → bytes, ``500m`` → 0.5. Raises QuantityError, also for what is too large for a float."""
    try:
        return float(parse_quantity(str(text)))
    except OverflowError as error:
        raise QuantityError(f"{text!r} is too large for a Kubernetes quantity") from error
