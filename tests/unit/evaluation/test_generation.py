"""What counts of a simulated decoder: texts within the targets, after a warm-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.errors import SettingsError
from autoscaler.state.targets import Targets
from evaluation.generation import CONSTANT, Setting, run_policy
from simulation.engine.errors import SimulationError
from simulation.generation.engine import Request
from simulation.generation.measured import Measured
from tests.unit.simulation.engine.builders import Arithmetic, configuration, workload

TIMES = Measured((1, 64), (0.5, 0.5), 0.0, 0.0, 0.0, 0.01, (1.0, 1.0), 64, 4000)
"""Half a second an iteration."""


def setting(requests: list[Request], tpot_s: float) -> Setting:
    made = workload((2,), Arithmetic(0.001, 0.0))
    nothing = Path("nothing")
    start = made.initial(configuration())
    start |= {node.function: configuration() for node in made.segments}
    return Setting(
        nothing, nothing, made, TIMES, requests, Targets(None, 5.0, tpot_s), start, window_s=5.0, warm_up_s=0.0
    )


@pytest.mark.parametrize(
    ("tpot_s", "counted", "goodput"),
    [
        pytest.param(0.1, 2, 0.5, id="too-slow-even-if-it-ended-now"),
        pytest.param(0.3, 1, 1.0, id="not-known-yet"),
    ],
)
def test_an_unfinished_text_is_missed_once_its_pace_is_over_the_target(
    tpot_s: float, counted: int, goodput: float
) -> None:
    """61 tokens at half a second each; 15 s after its begin a text's pace is 0.24 s at the least."""
    summary = run_policy(setting([Request(0.0, 10, 61), Request(12.0, 10, 1)], tpot_s), CONSTANT)
    assert (summary["requests"], summary["goodput"]) == (counted, goodput)


def test_a_warm_up_has_to_leave_a_window() -> None:
    whole = setting([Request(0.0, 10, 1), Request(12.0, 10, 1)], 1.0)
    assert run_policy(replace(whole, warm_up_s=10.0), CONSTANT)["windows"] == 1
    with pytest.raises(SimulationError, match="may be 0 to 10 s"):
        replace(whole, warm_up_s=10.1)


def test_a_constant_by_name_holds_its_instances_and_experts() -> None:
    requests = [Request(float(at), 10, 4) for at in range(12)]
    one, many = (run_policy(setting(requests, 1.0), name) for name in ("constant-1", "constant-3x2"))
    assert (one["instances_mean"], one["expert_replicas_mean"]) == (1.0, 1.0)
    assert (many["instances_mean"], many["instances_max"], many["expert_replicas_mean"]) == (3.0, 3, 2.0)
    assert many["instance_s"] == 3 * 15.0 and one["cost"] < many["cost"]


@pytest.mark.parametrize("name", ["constant-9", "constant-1x9"])
def test_a_constant_beyond_the_limits_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="at most 8 replicas"):
        run_policy(setting([Request(0.0, 10, 1)], 1.0), name)
