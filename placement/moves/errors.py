"""Errors of moves."""

from __future__ import annotations

from smoe.errors import SmoeError


class MoveError(SmoeError):
    """A move could not be made; the sentence says what was done about it."""


class ManagerGoneError(SmoeError):
    """A node's weights manager does not answer."""


class SourceLostError(SmoeError):
    """A weights manager could not get a region from where it was told to."""
