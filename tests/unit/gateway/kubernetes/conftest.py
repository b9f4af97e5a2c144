"""The gateway's backends on a double of the API server."""

from __future__ import annotations

from tests.doubles.kubernetes.fixtures import backends as backends
from tests.doubles.kubernetes.fixtures import double as double
from tests.doubles.kubernetes.fixtures import platforms as platforms
