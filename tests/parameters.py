"""Parameters of tests that are many of a kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def some_fast(values: Iterable[Any], fast: int = 3) -> list[Any]:
    """``values`` for ``pytest.mark.parametrize``; all but the first ``fast`` are slow."""
    return [
        value
        if place < fast
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]


def examples(number: int) -> int:
    """``max_examples`` of an expensive property: ``number``, a fifth of it where slow tests are left out."""
    return max(1, number // 5) if settings.get_current_profile_name() == "quick" else number
