"""What `smoe run` compares with: the same replay where nothing is scaled."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from gateway.client.client import GatewayClient
from smoe.cli import cli
from smoe.commands import demo
from smoe.load import Capacity
from smoe.parity import Parity
from smoe.report import kept
from smoe.scaled_replay import ScaledReplay
from traces.model import Trace

RUNS: list[ScaledReplay] = []


@dataclass(frozen=True)
class Recorded(ScaledReplay):
    """Writes down that it was run, and leaves what a run leaves."""

    def run(self, client: GatewayClient, console: Console) -> Any:
        RUNS.append(self)
        self.out.mkdir(parents=True)
        (self.out / "requests.csv").write_text("")
        return SimpleNamespace(summary={"complete": self.seed == 7})


def test_the_baseline_replays_the_same_requests_under_static_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RUNS.clear()
    monkeypatch.setattr(demo, "summary_of", lambda log, requests, slo_s, since_s: [log, requests.exists(), slo_s])
    trace = Trace(arrival_s=np.array([0.0, 1.0]), duration_s=2.0, source="two", sha256="")
    scaled = Recorded(
        "minilm", tmp_path, tmp_path, tmp_path / "out", trace, ["a"], 0.3, "hpa", {"cpu_target": 0.5}, 5.0, 4, 7
    )
    summary: Any = demo.measure_baseline(scaled, None, Console(file=StringIO()))  # type: ignore[arg-type]
    (run,) = RUNS
    assert (run.policy, run.policy_settings, run.out) == ("static", {}, tmp_path / "out" / "baseline")
    assert (run.trace, run.texts, run.seed, run.slo_s) == (trace, ["a"], 7, 0.3)
    assert summary == [tmp_path / "out" / "baseline" / "log", True, 0.3]
    with pytest.raises(SystemExit, match="130"):  # stopped: a part of the prompts is no baseline of all
        demo.measure_baseline(replace(scaled, seed=8, out=tmp_path / "stopped"), None, Console(file=StringIO()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("latency_s", "failed", "expected"),
    [
        pytest.param({"p95": 0.5}, 5, True, id="at the SLO, one in twenty failed"),
        pytest.param({"p95": 0.1}, 6, False, id="quick answers, and more failed"),
        pytest.param({"p95": 0.501}, 0, False, id="above it"),
        pytest.param(None, 0, False, id="nothing answered"),
    ],
)
def test_a_run_that_misses_the_slo_or_answers_nothing_fails_where_that_is_asked_for(
    latency_s: dict[str, float] | None, failed: int, expected: bool
) -> None:
    assert kept({"requests": {"latency_s": latency_s, "ok": 95, "failed": failed}}, 0.5) is expected


@pytest.mark.parametrize(
    ("p95_s", "flags", "status"),
    [
        pytest.param(0.5, ["--fail-on-miss"], 0, id="kept"),
        pytest.param(0.501, ["--fail-on-miss"], 1, id="missed"),
        pytest.param(0.501, [], 0, id="missed, and nobody asked"),
    ],
)
def test_the_exit_status_says_that_the_slo_was_missed_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, p95_s: float, flags: list[str], status: int
) -> None:
    for name in ("_hour", "_prompts", "_check_policy", "_running", "_deploy", "_metrics", "_plan_line", "_parity_line",
                 "compare_with_whole_model", "overload_of", "in_length_and_rate", "ScaledReplay", "replace",
                 "ensure_pipeline", "print_lines", "closing", "_report"):  # fmt: skip
        monkeypatch.setattr(demo, name, MagicMock())
    demo.ensure_pipeline.return_value = tmp_path, MagicMock(nodes=())  # type: ignore[attr-defined]
    demo._check_policy.return_value = "static", {}  # type: ignore[attr-defined]
    numbers = {"requests": {"latency_s": {"p95": p95_s}, "ok": 1, "failed": 0}}
    demo._report.return_value = MagicMock(numbers=numbers)  # type: ignore[attr-defined]
    order = ["run", "--slo-ms", "500", "--out", str(tmp_path / "out"), "--state", str(tmp_path), *flags]
    ended = CliRunner().invoke(cli, order)
    assert ended.exit_code == status
    assert ("the SLO was missed" in f"{ended.exception} {ended.output}") == bool(status)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(["--out", "FILE/out"], "FILE is a file", id="a report's folder in a file"),
        pytest.param(["--out", "."], "log is a file", id="a log that is a file"),
        pytest.param(["--plan", "FILE"], "for --policy static", id="a plan that nobody holds"),
        pytest.param(
            ["--policy", "hpa", "--profile", "FILE"], "for --policy staffing", id="a profile that nobody plans with"
        ),
        pytest.param(["--policy", "static", "--plan", "FILE"], "cannot be read", id="a plan that is none"),
        pytest.param(["--policy", "staffing", "--profile", "FILE"], "--profile", id="a profile that is none"),
        pytest.param(["--policy-settings", "FILE"], "policy settings FILE cannot be read", id="settings that are none"),
        pytest.param(["--policy-settings", "keys.toml"], "is not known", id="settings that the policy has not"),
        pytest.param(["--policy", "static", "--policy-settings", "keys.toml"], "not for --policy static", id="static"),
    ],
)
def test_what_a_run_cannot_use_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minilm_pipeline: Path, settings: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.lifecycle, "start_gateway", lambda *_, **__: pytest.fail("a gateway was started"))
    for name in ("FILE", "log"):
        (tmp_path / name).write_text("neither")
    (tmp_path / "keys.toml").write_text("unheard_of = 1")
    refused = CliRunner().invoke(cli, ["run", str(minilm_pipeline), "--state", str(tmp_path / "state"), *settings])
    assert refused.exit_code == 1 and words in str(refused.exception) + refused.output


def test_a_report_that_is_replaced_is_named_by_its_date(tmp_path: Path) -> None:
    said = StringIO()
    demo._check_out(tmp_path, console := Console(file=said, width=200))
    assert said.getvalue() == ""
    report = tmp_path / "report.html"
    report.write_text("")
    at_s = datetime(2026, 3, 4, 5, 6).timestamp()
    os.utime(report, (at_s, at_s))
    demo._check_out(tmp_path, console)
    assert said.getvalue() == f"{tmp_path}: replaces the report of 2026-03-04 05:06\n"


def test_a_policys_settings_come_from_its_file_next_to_what_a_core_is_here(tmp_path: Path) -> None:
    file = tmp_path / "rule.toml"
    file.write_text("standbys = 5.0")
    settings = demo.RunSettings(pipeline="minilm", state=tmp_path, data=None, policy="staffing", policy_file=file)
    assert settings.policy_settings == {"cpu_scale": settings.cpu_scale, "standbys": 5.0}


def test_how_long_a_prompt_takes_is_shown_in_milliseconds() -> None:
    shown = demo._parity_line(Parity(8, 1e-6, 2.0, 3.0, 4.0, warm_up_passes=20, measured_passes=10, warm=True))
    assert "takes 2000 ms through" in shown and "began at 4000 ms)" in shown and "3000 ms whole" in shown


@pytest.mark.parametrize(("given", "expected"), [(None, 16.0), (3.0, 3.0)], ids=["by capacity", "as asked for"])
def test_what_is_answered_as_deployed_is_measured_whatever_rate_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: float | None, expected: float
) -> None:
    """Runs at a given rate begin as others do: functions warm, and their work under load known to the ingress."""
    measured: list[int] = []
    monkeypatch.setattr(demo, "measure_capacity", lambda calls, _: measured.append(len(calls)) or Capacity(10.0, 1e-3))
    even = Trace(arrival_s=np.arange(0.0, 3600.0), duration_s=3600.0, source="even", sha256="")
    settings = demo.RunSettings(pipeline="minilm", state=tmp_path, data=None, mean_rps=given)
    said = StringIO()
    rate = demo.overload_of([lambda: None] * 2, lambda: 0.0, settings, even, Console(file=said, width=200))
    assert rate == pytest.approx(expected, rel=0.01) and measured == [2]
    assert f"ask for {1.6 * expected / 16:.2g} times that" in said.getvalue()
    assert ("no overload" in said.getvalue()) == (expected < 10)


def test_cores_that_are_busy_as_deployed_bound_the_rate_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(demo, "measure_capacity", lambda *_: Capacity(10.0, cores / 24))
    even = Trace(arrival_s=np.arange(0.0, 3600.0), duration_s=3600.0, source="even", sha256="")
    settings = demo.RunSettings(pipeline="minilm", state=tmp_path, data=None)
    said = StringIO()
    rate = demo.overload_of([], lambda: 0.0, settings, even, Console(file=said, width=200))
    assert rate == pytest.approx(0.35 * 24, rel=0.01)
    assert "no overload" in said.getvalue() and "--cpu-scale" in said.getvalue()
