"""Refusals of an API server: status code, reason and the sentences that were recorded from a real one."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """An answer that is not a success; ``document`` is its Status object."""

    def __init__(self, code: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.document: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


def not_found(what: str, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{what} "{name}" not found')


def exists(what: str, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{what} "{name}" already exists')


def stale(what: str, name: str) -> Refusal:
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {what} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
    )


def invalid(kind: str, name: str, message: str) -> Refusal:
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {message}')


def forbidden(what: str, name: str, message: str) -> Refusal:
    return Refusal(403, "Forbidden", f'{what} "{name}" is forbidden: {message}')


def gone(version: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {version} ({oldest})")
