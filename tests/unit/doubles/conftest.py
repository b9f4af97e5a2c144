"""A double of the API server."""

from __future__ import annotations

from tests.doubles.kubernetes.fixtures import double as double
