"""Errors of the gateway's client.

GatewayClientError
├── GatewayUnreachableError   nothing answers at the gateway's address
├── GatewayRefusedError       the gateway answered with an error status
├── NotReadyError             functions did not become ready in time
└── StateError                the state folder does not hold what is needed
"""

from __future__ import annotations


class GatewayClientError(Exception):
    """Base; each carries a sentence for people."""


class GatewayUnreachableError(GatewayClientError):
    """No connection, or no answer in time."""


class GatewayRefusedError(GatewayClientError):
    """An answer with an error status; ``status`` holds it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotReadyError(GatewayClientError):
    """Waited, and it was not ready."""


class StateError(GatewayClientError):
    """The state folder is missing or incomplete."""
