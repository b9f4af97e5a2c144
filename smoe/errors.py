"""Errors of the command line: :class:`SmoeError` is their root."""

from __future__ import annotations


class SmoeError(Exception):
    """Base; the command line prints the sentence and exits with 1."""
