"""Seconds as people read them, the same in ticks, live view, closing lines and report. Pure."""

from __future__ import annotations


def duration(seconds: float | None, unknown: str = "no data") -> str:
    """Three significant digits of a millisecond below 10 ms, whole milliseconds below 10 s, seconds beyond; ``unknown``
    where there is no number."""
    if seconds is None:
        return unknown
    if seconds < 0.00995:
        return f"{1000 * seconds:.3g} ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 9.9995 else f"{seconds:.1f} s"
