"""The controller's platforms and stories of ticks on a double of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.decision.limits import LimitSettings
from tests.doubles.kubernetes import store
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.fixtures import double as double
from tests.doubles.kubernetes.fixtures import platforms as platforms
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.platforms.ticks import F, Stories, Story


@pytest.fixture
def stories(double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch) -> Stories:
    """Begins a story of some functions, by default of one; ``limits``: settings of decisions."""

    def begin(*functions: str, **limits: Any) -> Story:
        for function in functions or (F,):
            put(double, spec(function))
        return Story(
            double, platforms, LimitSettings(**limits), lambda ahead_s: monkeypatch.setattr(store, "ahead_s", ahead_s)
        )

    return begin
