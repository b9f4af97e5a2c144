"""``smoe autoscale`` from its options to its lines, against a gateway that is not there."""

from __future__ import annotations

import gc
import json
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from autoscaler.commands import autoscale
from autoscaler.contract import (
    Burst,
    Configuration,
    Cost,
    Decision,
    GenerationObservation,
    Observation,
    Proposal,
    TickReport,
)
from autoscaler.describe import line, summary
from autoscaler.errors import UndecidedError
from autoscaler.logger import read_contexts, read_pipeline
from autoscaler.policies import Making
from autoscaler.process import spared_collections
from autoscaler.state.targets import Targets
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation
from tests.unit.autoscaler.manifests import write_pipeline

log = logging.getLogger(__name__)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write_pipeline(tmp_path / "pipelines" / "tiny")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "basic-auth-password").write_text("very-secret\n")
    (tmp_path / "gateway.json").write_text(json.dumps({"url": "http://127.0.0.1:9"}))
    return tmp_path


def call(state: Path, *more: str) -> Result:
    arguments = ["--state", str(state), "--pipeline", "tiny", "--interval", "0.01s", "--ticks", "1", *more]
    return CliRunner().invoke(autoscale, arguments)


@pytest.mark.slow
def test_ticks_go_on_while_the_gateway_is_away_and_are_logged_without_the_password(state: Path) -> None:
    result = call(state, "--slo-ms", "250", "--ticks", "2")
    assert isinstance(result.exception, UndecidedError) and "system/targets could not be read" in str(result.exception)
    assert result.stdout.count("holding (") == 2
    assert "holding (the list of scrape targets at http://127.0.0.1:9/system/targets could not be read" in result.stdout
    row = read_pipeline(state / "log").to_pylist()[0]
    assert row["stale"] and row["slo_s"] == 0.25 and row["latency_p95_s"] is None
    (context,) = read_contexts(state / "log")
    assert context["pipeline"] == "tiny" and context["policy"] == context["settings"]["policy"] == "hpa"
    assert context["choice"].startswith("auto: hpa, because no profile is named")
    assert "very-secret" not in json.dumps(context) + result.output


@pytest.mark.slow
def test_json_has_one_object_for_each_tick(state: Path) -> None:
    result = call(state, "--json", "--ticks", "2", "--dry-run")
    rows = [json.loads(text) for text in result.stdout.splitlines() if text.startswith("{")]
    assert len(rows) == 2 and all(row["stale"] and row["dry_run"] and row["changes"] == [] for row in rows)
    assert {row["choice"] for row in rows} == {"auto: hpa, because there is no target (--slo-ms)"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "choice"),
    [
        ({}, "auto: hpa, because no profile is named"),
        ({"cpu_scale": 0.01}, "auto: staffing, with replicas of the size that is deployed, as there is no profile"),
    ],
)
def test_what_a_core_is_comes_from_the_gateway_of_the_state_folder(
    state: Path, scale: dict[str, float], choice: str
) -> None:
    (state / "gateway.json").write_text(json.dumps({"url": "http://127.0.0.1:9", **scale}))
    result = call(state, "--json", "--dry-run", "--slo-ms", "250")
    assert json.loads(result.stdout.splitlines()[0])["choice"].startswith(choice)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--interval", "soon"], "'soon' is not a valid seconds"),
        (["--interval", "-3"], "-3.0 is not in the range 0<x<86400"),
        (["--interval", "nan"], "interval_s is nan; it should be a finite number"),
        (["--policy", "magic"], "'magic'"),
        (["--password-file", "/none"], "does not exist"),
        (["--pipeline", "other", "--manifest", "pipelines/tiny"], "say smoe autoscale tiny"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(state: Path, options: list[str], sentence: str) -> None:
    options = [str(state / text) if text.startswith("pipelines") else text for text in options]
    result = call(state, *options)
    assert result.exit_code == 2 and sentence in result.output


@pytest.mark.slow
def test_the_pipeline_is_an_argument_as_of_other_commands(state: Path) -> None:
    arguments = ["--state", str(state), "--interval", "0.01s", "--ticks", "1"]
    named = CliRunner().invoke(autoscale, ["tiny", *arguments])
    assert isinstance(named.exception, UndecidedError) and read_contexts(state / "log")[0]["pipeline"] == "tiny"
    two = CliRunner().invoke(autoscale, ["tiny", "--pipeline", "other", *arguments])
    assert two.exit_code == 2 and "two pipelines are named, tiny and --pipeline other" in two.output
    default = CliRunner().invoke(autoscale, arguments)
    assert default.exit_code != 0 and "minilm" in f"{default.output} {default.exception}"


def test_a_state_folder_without_a_gateway_is_reported(tmp_path: Path) -> None:
    result = call(tmp_path)
    assert result.exit_code == 2 and "no gateway runs on" in result.output


class Hanging:
    """A policy that stands still until the controller says so of itself."""

    name = "hanging"

    def __init__(self, making: Making) -> None:
        self._url = f"http://127.0.0.1:{making.settings.metrics_port}/healthz"

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        answers = []
        end_s = time.monotonic() + 20.0
        while time.monotonic() < end_s and 503 not in answers:
            reply = requests.get(self._url, timeout=100)
            answers.append(reply.status_code)
        assert "the tick has stood still for" in reply.text
        log.info("healthy at first: %s", answers[0] == 200)
        return Proposal({}, {})


@pytest.mark.slow
def test_a_controller_whose_tick_hangs_is_not_healthy_while_it_does(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = call(state, "--policy", f"{__name__}:Hanging", "--metrics-port", str(port), "--stalled", "0.5")
    assert isinstance(result.exception, UndecidedError) and "policy hanging failed" not in caplog.text
    assert "healthy at first: True" in caplog.text


def report(**more: Any) -> TickReport:
    decision = Decision("m", "ingress", configuration(1), configuration(5), configuration(3), "busy", ("a step",))
    values: dict[str, Any] = {"applied": ("m",), "cost": Cost(1.0, 2.0), "policy": "hpa"}
    return TickReport(observation(), (decision,), **{**values, **more})


def test_a_tick_is_one_line_for_people() -> None:
    assert line(report()) == "requests 1.0/s, P95 200 ms, $720/h, 1 change: m: replicas 1 → 3"
    failed = report(applied=(), failures={"m": "broken"}, dry_run=True)
    assert "1 change (dry run); 1 failed" in line(failed)


def change(function: str, target: Configuration) -> Decision:
    return Decision(function, "expert-0-0", configuration(1), target, target, "load", ())


def test_functions_with_the_same_change_are_named_once_in_a_tick() -> None:
    replicas = [change(name, configuration(3)) for name in "abc"]
    several = [*replicas, change("d", replace(configuration(1), memory_mb=512)), change("e", configuration(2))]
    assert line(replace(report(), decisions=several)).endswith(
        "5 changes: a and 2 more: replicas 1 → 3; d: memory 256 → 512 MB; e: replicas 1 → 2"
    )
    many = [change(f"f{count}", configuration(count)) for count in range(2, 10)]
    assert line(replace(report(), decisions=many)).count("→") == 6
    assert line(replace(report(), decisions=many)).endswith("f7: replicas 1 → 7 …")


def test_a_stated_cost_that_is_another_for_each_function_is_one_change_of_a_tick() -> None:
    decisions = [
        Decision(name, "expert-0-0", bursting(0.002), bursting(after_s), bursting(after_s), "load", ())
        for name, after_s in (("a", 0.003), ("b", 0.004))
    ]
    assert line(replace(report(), decisions=decisions)).endswith("2 changes: a and 1 more: a token's cost")


def bursting(token_s: float) -> Configuration:
    return replace(configuration(1), burst=Burst(1, token_s=token_s))


def test_a_long_reason_ends_between_words() -> None:
    text = "held " * 60
    held = Decision("m", "ingress", configuration(1), configuration(1), configuration(1), text, ())
    assert line(replace(report(), decisions=(held,))).endswith("held held …)")


def test_a_tick_names_the_slo_whether_it_is_broken_and_why_nothing_changes() -> None:
    kept, other = (
        Decision("m", "ingress", configuration(1), configuration(1), configuration(1), reason, ())
        for reason in ("CPU 31 % of 80 %", "other")
    )
    quiet = replace(report(), decisions=(other, kept, kept))
    slow = replace(quiet, observation=observation(latency_p95_s=20.22659))
    assert "P95 20.2 s of 1500 ms OVER," in line(slow, targets=Targets(1.5))
    assert summary(slow)["p95_s"] == 20.22659
    assert "P95 200 ms of 150 ms OVER," in line(quiet, targets=Targets(0.15))
    assert "P95 200 ms of 250 ms," in line(quiet, targets=Targets(0.25), currency="EUR")
    assert line(quiet, currency="EUR").endswith("EUR 720/h, 0 changes (CPU 31 % of 80 %)")


def test_a_decoder_s_tick_names_its_tokens_and_texts() -> None:
    texts = GenerationObservation(ttft_p95_s=1.2, tpot_p95_s=0.05, running=3.0, waiting=2.0, kv_usage=0.4)
    window = replace(report(), observation=observation(generation=texts))
    expected = "P95 200 ms, TTFT 1200 ms of 1000 ms OVER, TPOT 50 ms of 80 ms, texts 3 + 2 waiting, KV 40%,"
    assert expected in line(window, targets=Targets(ttft_s=1.0, tpot_s=0.08))
    assert json.loads(json.dumps(summary(window)))["generation"]["waiting"] == 2.0


def test_a_tick_without_data_says_so_and_shows_dashes() -> None:
    stale = replace(report(), observation=observation(stale=True, latency_p95_s=None, requests_per_s=None))
    assert line(stale).startswith("holding (no data); requests –, P95 –")


def test_a_summary_is_json_and_has_what_was_observed_desired_limited_and_done() -> None:
    document = json.loads(json.dumps(summary(report())))
    assert document["end_s"] == NOW_S and document["cost_provisioned"] == 2.0 and document["decisions"] == 1
    assert document["changes"] == [
        {
            "function": "m",
            "present": "256MiB/1cpu/1x4",
            "wish": "256MiB/1cpu/5x4",
            "target": "256MiB/1cpu/3x4",
            "replicas": [1, 3],
            "reason": "busy",
            "limits_hit": ["a step"],
            "applied": True,
        }
    ]


STALE = {"observation": observation(stale=True, problems=("nobody answers",))}
UNLISTED = {"observation": observation(problems=("the functions could not be listed",)), "decisions": ()}
UNDEPLOYED = {"decisions": ()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ticks", "sentence"),
    [
        ([STALE], "1 tick, and nothing could be decided: nobody answers"),
        ([UNLISTED, STALE, STALE], "3 ticks, and nothing could be decided: nobody answers"),
        ([STALE, UNLISTED], "2 ticks, and nothing could be decided: the functions could not be listed"),
        ([UNDEPLOYED], "no function of the pipeline is deployed there"),
        ([{}], ""),
        ([STALE, {}, UNLISTED], ""),
    ],
)
def test_so_many_ticks_of_which_none_could_decide_are_an_error(
    state: Path, monkeypatch: pytest.MonkeyPatch, ticks: list[dict[str, Any]], sentence: str
) -> None:
    reports = iter([replace(report(), **changes) for changes in ticks])

    class Scripted:
        prices, view = PRICES, None

        def tick(self, now_s: float, window_s: float | None) -> TickReport:
            return next(reports)

        def close(self) -> None:
            pass

    monkeypatch.setattr("autoscaler.process.build_controller", lambda *_: (Scripted(), 1.0))
    result = call(state, "--ticks", str(len(ticks)))
    assert len(result.stdout.splitlines()) == len(ticks) and next(reports, None) is None
    assert (result.exit_code, isinstance(result.exception, UndecidedError)) == ((1, True) if sentence else (0, False))
    assert not sentence or str(result.exception).endswith(sentence)


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)])
def callers(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the caller had put objects out of the collector's way, as the test run has; looking through them all
    takes a second."""
    if not request.param:
        gc.unfreeze()
    yield request.param
    gc.freeze()


@pytest.mark.slow
def test_what_stays_is_out_of_the_collector_s_way_until_the_end(callers: bool) -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    assert callers == (frozen > 0)
    with spared_collections() as settle:
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() <= frozen  # the first lists are spared, too
        kept = [[number] for number in range(2000)]
        settle()
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() >= max(10_000, frozen + len(kept))
        assert len(gc.get_objects()) < 1000
    assert gc.get_threshold() == before
    assert (gc.get_freeze_count() > frozen) if callers else (gc.get_freeze_count() == 0)
