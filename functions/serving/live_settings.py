"""The settings that a platform changes while a function runs, from a file: today ``max_inflight``."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from functions.serving.file_state import file_state
from functions.serving.server import FunctionServer
from functions.serving.settings import FunctionSettings, SettingsError

log = logging.getLogger(__name__)


def apply(settings: FunctionSettings, server: FunctionServer) -> None:
    """Take the live settings over; a bad file leaves the present ones."""
    if settings.live_settings is None:
        return
    try:
        limit = live_max_inflight(settings.live_settings, server.settings.max_inflight)
    except SettingsError as error:
        log.warning("live settings left as they are: %s", error)
        return
    if limit != server.settings.max_inflight:
        log.info("max_inflight is now %d", limit)
        server.settings.max_inflight = limit


async def follow(settings: FunctionSettings, server: FunctionServer) -> None:
    """Apply the live settings whenever their file was replaced or changed: in a cluster nobody sends SIGHUP.

    Looks every ``live_period_s``; returns at once where that is 0.
    """
    content: object = ()
    while settings.live_settings is not None and settings.live_period_s:
        try:
            now: object = file_state(settings.live_settings)
        except OSError:
            now = None
        if now != content:
            content = now
            apply(settings, server)
        await asyncio.sleep(settings.live_period_s)


def live_max_inflight(path: Path, present: int) -> int:
    """The limit that the live settings file asks for, or ``present`` where it sets none. Raises SettingsError."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return present
    except (OSError, json.JSONDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as JSON: {error}") from error
    value = document.get("max_inflight", present) if isinstance(document, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SettingsError(f"{path}: max_inflight is {value!r}; it takes a whole number, 0 for no limit")
    return value
