"""Errors of this room.

TraceError
├── (a file breaks its format: names file, line and rule)
├── NoMatchError     nothing in the data fits what was asked for
├── FetchError       a published file could not be downloaded or is not the published one
└── ReplayError      the replay could not begin or could not write its results
"""

from __future__ import annotations

from pathlib import Path


class TraceError(Exception):
    """Base; one sentence: what is wrong, where, and what is allowed."""


class NoMatchError(TraceError):
    """No row, hour or data set fits the request."""


class FetchError(TraceError):
    """A published file cannot be had; the sentence names what to do next."""


class ReplayError(TraceError):
    """A replay's settings make no sense, or its results cannot be stored."""


def broken(path: Path, line: int, rule: str) -> TraceError:
    """An error about one line (counted from 1) of a file."""
    return TraceError(f"{path}:{line}: {rule}")
