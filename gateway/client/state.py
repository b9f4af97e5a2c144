"""Reading a state folder: where its gateway listens, with which password, and whether it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gateway.client.errors import StateError

DEFAULT_STATE = Path(".smoe")


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone: one of them may be a state folder."""
    for path in reversed((folder, *folder.parents)):
        path.mkdir(exist_ok=True, mode=0o700)


def read_gateway(state: Path) -> dict[str, Any]:
    """``{url, metrics_url, pid, cpu_scale}`` of the gateway that runs on this state folder; raises StateError."""
    path = state / "gateway.json"
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise StateError(f"no gateway runs on the state folder {state}; start one with `smoe up`") from None
    except json.JSONDecodeError as error:
        raise StateError(f"{path} is not JSON ({error}); remove it and start again with `smoe up`") from error
    return document


def read_gateway_address(state: Path) -> str:
    return str(read_gateway(state)["url"])


def read_password(state: Path) -> str:
    """The generated basic-auth password; raises StateError."""
    path = state / "secrets" / "basic-auth-password"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise StateError(
            f"{path} is missing, and with it the gateway's password: `smoe up` makes one, --password-file names another"
        ) from None


def running_pid(state: Path) -> int | None:
    """Process id of the live gateway of this state folder, or None."""
    try:
        pid = int(read_gateway(state)["pid"])
    except (StateError, KeyError, ValueError):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return pid
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return pid
    return pid if b"gateway" in command else None
