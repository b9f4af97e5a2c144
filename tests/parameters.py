"""Parameters of tests that are many of a kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings


def some_fast(values: Iterable[Any], fast: int | Collection[Any] = 3) -> list[Any]:
    """``values`` for ``pytest.mark.parametrize``; all but the first ``fast``, or but those in ``fast``, are slow."""
    return [
        value if (place < fast if isinstance(fast, int) else value in fast) else _slow(value)
        for place, value in enumerate(values)
    ]


def _slow(value: Any) -> Any:
    if hasattr(value, "marks"):  # of pytest.param
        return pytest.param(*value.values, marks=(*value.marks, pytest.mark.slow), id=value.id)
    return pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.slow)


def examples(number: int) -> int:
    """``max_examples`` of an expensive property: ``number``, a fifth of it where slow tests are left out."""
    return max(1, number // 5) if settings.get_current_profile_name() == "quick" else number
