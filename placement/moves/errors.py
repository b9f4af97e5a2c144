"""Errors of moves."""

from __future__ import annotations

from placement.errors import PlacementError


class MoveError(PlacementError):
    """A move could not be made; the sentence names what was done about it."""


class ManagerGoneError(PlacementError):
    """A node's weights manager does not answer."""


class SourceLostError(PlacementError):
    """A weights manager could not get a region from the source that it was given."""
