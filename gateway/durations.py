"""OpenFaaS's durations: a number of seconds (``60``, ``0.5``) or Go's form (``1m30s``, ``500ms``)."""

from __future__ import annotations

import re

_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """The duration in seconds. Raises ValueError with a sentence."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:40]!r} is no duration; it takes seconds (60) or a form such as 500ms, 30s, 1m30s")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
