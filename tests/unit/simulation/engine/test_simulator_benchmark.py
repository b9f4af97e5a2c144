"""What ``benchmarks.simulator`` compares with the event-driven model holds orders and cold starts."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from click.testing import CliRunner

from benchmarks.simulator import __main__ as simulator


def test_a_compared_run_without_orders_and_cold_starts_is_refused() -> None:
    result = CliRunner().invoke(simulator.main, ["--requests", "50", "--compared", "50"])
    assert result.exit_code == 2 and "with 0 orders and 0 cold starts" in " ".join(result.output.split())


def test_outside_of_the_source_tree_it_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tests.unit.simulation.engine.oracle", None)
    with pytest.raises(SystemExit, match="runs in the source tree, after make setup: import of tests"):
        importlib.reload(simulator)


@pytest.mark.slow
def test_both_models_meet_orders_and_cold_starts_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "SHORT_WINDOW_S", 0.2)
    options = ["--requests", "200", "--compared", "200", "--rounds", "1"]
    document = json.loads(CliRunner().invoke(simulator.main, options, catch_exceptions=False).output.splitlines()[-1])
    assert document["orders"][1] > 0 and document["cold_starts"][1] > 0
    assert document["max_abs_diff_s"] < 1e-9
