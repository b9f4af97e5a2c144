"""Which alerts fire when: ``deploy/prometheus/rules.yaml`` in promtool's own unit tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yaml"
FUNCTION = "m-expert-0-0.openfaas-fn"

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def check(tmp_path: Path, series: dict[str, str], alert: str, at: str, expected: list[dict[str, Any]]) -> str:
    """What promtool finds wrong: empty where exactly the ``expected`` alerts fire ``at`` that time.

    ``series``: values in promtool's notation, one every 15 s.
    """
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=100
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def replicas(ready: str, least: int, wanted: int) -> dict[str, str]:
    """Series of one function as two gateways report it; the second began a minute later."""
    replicas = {}
    for gateway, first in (("a", ""), ("b", "_x4 ")):
        label = f'function_name="{FUNCTION}",instance="{gateway}"'
        replicas |= {
            f'smoe_function_replicas{{{label},state="ready"}}': first + ready,
            f'smoe_function_replicas{{{label},state="starting"}}': first + "1x60",
            f"smoe_function_min_replicas{{{label}}}": f"{first}{least}x60",
            f"gateway_service_count{{{label}}}": f"{first}{wanted}x60",
        }
    return replicas


@pytest.mark.parametrize(
    ("ready", "least", "wanted", "reported"),
    [
        pytest.param("2x60", 3, 3, "2", id="below its own minimum of three"),
        pytest.param("1x60", 2, 1, "1", id="somebody wants less than the minimum"),
        pytest.param("0x60", 1, 1, "0", id="none is ready"),
        pytest.param("0x60", 0, 2, "0", id="none is ready of a function that may go to zero"),
        pytest.param("3x60", 3, 8, None, id="at its minimum"),
        pytest.param("1x60", 1, 4, None, id="one is enough"),
        pytest.param("0x60", 3, 0, None, id="scaled to zero on purpose"),
        pytest.param("3x8 2x6 3x60", 3, 3, None, id="below it for less than two minutes"),
    ],
)
def test_a_function_below_its_own_minimum_for_two_minutes_is_reported(
    tmp_path: Path, ready: str, least: int, wanted: int, reported: str | None
) -> None:
    expected = []
    if reported is not None:
        summary = f"{FUNCTION} has {reported} ready replicas, fewer than its minimum."
        labels = {"function_name": FUNCTION, "severity": "critical"}
        expected = [{"exp_labels": labels, "exp_annotations": {"summary": summary}}]
    assert check(tmp_path, replicas(ready, least, wanted), "SmoeFunctionBelowItsMinimum", "4m", expected) == ""


def leaders(**acts: str) -> dict[str, str]:
    """Pods named ``PIPELINE_LETTER``, each a controller of that pipeline that acts where its value is 1."""
    return {
        f'smoe_controller_leader{{pipeline="{pod.partition("_")[0]}",pod="{pod}"}}': one for pod, one in acts.items()
    }


def nobody(pipeline: str = "") -> dict[str, Any]:
    """The alert that no controller acts, of one pipeline or of all."""
    whose = f" of {pipeline}" if pipeline else ""
    labels = {"severity": "critical"} | ({"pipeline": pipeline} if pipeline else {})
    return {
        "exp_labels": labels,
        "exp_annotations": {"summary": f"No controller{whose} acts: replicas stay as they are."},
    }


def test_a_pipeline_without_a_controller_that_acts_is_reported_though_another_has_one(tmp_path: Path) -> None:
    """The leader hangs after a minute and stops acting; the other never takes over."""
    series = leaders(m_a="1x4 0x60", m_b="0x60", n_a="1x60")
    assert check(tmp_path, series, "SmoeNoController", "1m30s", []) == ""
    assert check(tmp_path, series, "SmoeNoController", "3m", [nobody("m")]) == ""


def test_a_pipeline_whose_controllers_are_gone_is_reported(tmp_path: Path) -> None:
    series = leaders(m_a="1x4 stale", n_a="1x60")
    assert check(tmp_path, series, "SmoeNoController", "3m", [nobody("m")]) == ""


def test_a_cluster_that_never_had_a_controller_is_reported(tmp_path: Path) -> None:
    assert check(tmp_path, {"up": "1x60"}, "SmoeNoController", "3m", [nobody()]) == ""


def test_two_controllers_of_one_pipeline_are_reported_and_one_of_each_are_not(tmp_path: Path) -> None:
    summary = {"summary": "2 controllers of m act; is --lease missing?"}
    expected = {"exp_labels": {"pipeline": "m", "severity": "critical"}, "exp_annotations": summary}
    assert check(tmp_path, leaders(m_a="1x60", n_a="1x60"), "SmoeTwoControllers", "3m", []) == ""
    assert check(tmp_path, leaders(m_a="1x60", m_b="1x60", n_a="1x60"), "SmoeTwoControllers", "3m", [expected]) == ""
