"""Platforms that bring about replicas only: standbys are refused in words, not ignored."""

from __future__ import annotations

from autoscaler.contract import Configuration
from autoscaler.errors import PlatformError


def refuse_standbys(function: str, target: Configuration, why: str) -> None:
    """Raises PlatformError where ``target`` has standbys."""
    if target.standbys:
        raise PlatformError(f"function {function} cannot have {target.standbys} standbys: {why}")
