"""Errors of the command line.

SmoeError
├── GatewayUnreachableError   nothing answers at the gateway's address
├── GatewayRefusedError       the gateway answered with an error status
├── NotReadyError             functions did not become ready in time
└── StateError                the state folder does not hold what is needed
"""

from __future__ import annotations


class SmoeError(Exception):
    """Base; the command line prints the sentence and exits with 1."""


class GatewayUnreachableError(SmoeError):
    """No connection, or no answer in time."""


class GatewayRefusedError(SmoeError):
    """An answer with an error status; ``status`` holds it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotReadyError(SmoeError):
    """Waited, and it was not ready."""


class StateError(SmoeError):
    """The state folder is missing or incomplete."""
