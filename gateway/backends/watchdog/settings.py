"""Settings of the watchdog, from the function's environment; names as in the classic watchdog."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.durations import parse_duration

_TRUE = ("1", "t", "T", "true", "TRUE", "True")


class WatchdogError(ValueError):
    """A setting has a value that is not allowed."""


@dataclass(frozen=True)
class WatchdogSettings:
    """``command`` is split on single spaces: no shell, no quoting."""

    command: tuple[str, ...]
    exec_timeout_s: float = 0.0
    """0: no limit."""
    max_connections: int = 1024
    read_timeout_s: float = 60.0
    write_timeout_s: float = 30.0
    max_inflight: int = 0
    combine_output: bool = True
    cgi_headers: bool = True
    content_type: str = ""
    max_body_bytes: int = 64 * 1024 * 1024
    live_settings: Path | None = None
    caller_key: str = field(default="", repr=False)
    """What calls show in ``X-Smoe-Caller-Key``; empty: anybody may call."""


def from_environment(environ: Mapping[str, str]) -> WatchdogSettings:
    """Read and check. Raises WatchdogError."""
    command = tuple(part for part in environ.get("fprocess", "").split(" ") if part)
    if not command:
        raise WatchdogError("fprocess is empty; it is the command to run for each call")
    live, key = environ.get("smoe_live_settings"), environ.get("smoe_caller_key_file")
    return WatchdogSettings(
        command=command,
        exec_timeout_s=_duration_s(environ, "exec_timeout", 0.0),
        max_connections=_whole(environ, "smoe_max_connections", 1024),
        read_timeout_s=_duration_s(environ, "read_timeout", 60.0),
        write_timeout_s=_duration_s(environ, "write_timeout", 30.0),
        max_inflight=_whole(environ, "max_inflight", 0),
        combine_output=environ.get("combine_output", "true") in _TRUE,
        cgi_headers=environ.get("cgi_headers", "true") in _TRUE,
        content_type=environ.get("content_type", ""),
        live_settings=Path(live) if live else None,
        caller_key=Path(key).read_text().strip() if key else "",
    )


def live_max_inflight(path: Path | None, present: int) -> int:
    """``max_inflight`` of the live settings file; ``present`` where the file holds nothing usable."""
    if path is None:
        return present
    try:
        value = json.loads(path.read_text())["max_inflight"]
    except (OSError, ValueError, KeyError, TypeError):
        return present
    return value if isinstance(value, int) and value >= 0 else present


def _duration_s(environ: Mapping[str, str], key: str, default: float) -> float:
    text = environ.get(key, "").strip()
    try:
        return parse_duration(text) if text else default
    except ValueError as error:
        raise WatchdogError(f"{key}: {error}") from None


def _whole(environ: Mapping[str, str], key: str, default: int) -> int:
    text = environ.get(key, "").strip()
    if text and not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise WatchdogError(f"{key} is {text!r}; it takes a whole number of 0 or more")
    return int(text) if text else default
