"""Errors of the controller.

AutoscalerError
├── ConfigurationError          a configuration that cannot be
├── SettingsError               a setting with a value that is not allowed
├── UnfitError                  a policy that another one is better than here
├── MetricsError                a metrics source cannot be reached or read
├── UndecidedError              none of the ticks that were asked for could decide, or the lease was not to be had
├── LogError                    a file of the function logger cannot be read or written
└── PlatformError               a change could not be read or made
    ├── FunctionGoneError       the function is not deployed
    └── UnreachableError        the platform does not answer, so nothing else can be done there either
"""

from __future__ import annotations

import re


class AutoscalerError(Exception):
    """Base."""


class ConfigurationError(AutoscalerError, ValueError):
    """Numbers that make no configuration."""


class SettingsError(AutoscalerError, ValueError):
    """A setting is not allowed; the sentence names key, rule and value."""


class UnfitError(AutoscalerError):
    """A policy is not what a pipeline is scaled best by here; the sentence states why, to go on from "because"."""


class MetricsError(AutoscalerError):
    """Nothing could be read."""


class UndecidedError(AutoscalerError):
    """None of the ticks that were asked for had the data, or the functions, to decide by, or the lease to begin."""


class LogError(AutoscalerError, OSError):
    """A file of the function logger could not be read or written; the sentence names it."""


class PlatformError(AutoscalerError):
    """A call to the platform failed."""


class FunctionGoneError(PlatformError):
    """The function does not exist there."""


class UnreachableError(PlatformError):
    """The platform did not answer, or refused the password."""


class AccessError(UnreachableError):
    """The platform refused user or password."""


def in_words(error: Exception) -> str:
    """Its kind, and what it states."""
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def without_password(text: str) -> str:
    """An address, or a text that names some, as logs show it: without the user and password that may stand in one.
    Up to the last @, as a password may hold a / that nobody encoded."""
    return re.sub(r"//\S*@", "//", text)
