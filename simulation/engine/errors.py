"""Errors of the simulator.

SimulationError
"""

from __future__ import annotations


class SimulationError(ValueError):
    """Something that cannot be simulated; the message names what and what is allowed."""
