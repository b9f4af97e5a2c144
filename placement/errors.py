"""Errors of placement: PlacementError (bad input) and, below it, InfeasibleError (no plan can exist)."""

from __future__ import annotations

from autoscaler.errors import AutoscalerError


class PlacementError(AutoscalerError, ValueError):
    """Input that cannot be: the sentence names what, its value and what is allowed."""


class InfeasibleError(PlacementError):
    """No plan meets all constraints; the sentence names the one that cannot be met."""
