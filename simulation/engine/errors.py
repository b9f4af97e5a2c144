"""Errors of the simulator.

SimulationError
"""

from __future__ import annotations


class SimulationError(ValueError):
    """Something that cannot be simulated; the sentence says what and what is allowed."""
