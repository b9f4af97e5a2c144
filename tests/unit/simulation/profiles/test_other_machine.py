"""A profile of another machine: refused by whatever is told to plan with it."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from autoscaler.contract import ConfigurationSpace
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology
from evaluation.bound.commands import bound
from evaluation.tuning.commands import tune
from rl.train.commands import train
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.measure.whole import whole_model_s
from simulation.profiles.model import bundled
from simulation.profiles.model.bundled import fitting
from simulation.profiles.model.storage import load, save
from simulation.workloads.custom import CustomPipeline
from smoe.commands.evaluate import evaluate


def profile_of(folder: Path, pipeline: Path, **machine: str) -> Path:
    """The tree's profile of the pipeline, as if this machine had measured it but for ``machine``."""
    profile, path = load(fitting(pipeline, None)), folder / "profile.parquet"
    own = replace(profile.metadata, machine=replace(this_machine(), **machine))  # type: ignore[arg-type]
    save(replace(profile, metadata=own), path)
    return path


@pytest.fixture
def elsewhere(minilm_pipeline: Path, tmp_path: Path) -> Path:
    return profile_of(tmp_path, minilm_pipeline, cpu_model="abacus")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "wrong", "complaint"),
    [
        (evaluate, ["--policies", "nobody"], "policies are"),
        (bound, ["--trace", "nowhere.csv"], "nowhere.csv"),
        (tune, ["--policy", "tuned-hpa", "--trace", "nowhere.csv"], "nowhere.csv"),
        (train, ["--set", "nothing=1"], "'nothing=1' is no KEY=JSON"),
    ],
    ids=["evaluate", "bound", "tune", "train"],
)
def test_who_plans_refuses_it_with_the_difference_unless_it_is_meant(
    minilm_pipeline: Path, elsewhere: Path, command: click.Command, wrong: list[str], complaint: str
) -> None:
    asked = ["--pipeline", str(minilm_pipeline), "--slo-ms", "300", "--profile", str(elsewhere), *wrong]
    refused = CliRunner().invoke(command, asked)
    words = " ".join(refused.output.split())
    assert refused.exit_code == 2
    assert f"cpu_model was 'abacus' and is '{this_machine().cpu_model}'" in words and "(--other-machine)" in words
    meant = CliRunner().invoke(command, [*asked, "--other-machine"])  # and goes on to what else is wrong
    assert complaint in f"{' '.join(meant.output.split())} {meant.exception}"


@pytest.mark.slow
def test_a_target_is_so_many_times_what_the_whole_model_takes_here(minilm_pipeline: Path, tmp_path: Path) -> None:
    own = profile_of(tmp_path, minilm_pipeline)
    asked = ["--pipeline", str(minilm_pipeline), "--profile", str(own), "--slo-factor", "5", "--policies", "nobody"]
    result = CliRunner().invoke(evaluate, asked)  # measures, then stumbles over the policy
    reported = re.search(
        r"latency target: 5 × ([\d.]+) ms .* 24 tokens, one thread, now\) = ([\d.]+) ms", result.output
    )
    assert reported and "policies are" in str(result.exception)
    assert float(reported[2]) == pytest.approx(5 * float(reported[1]), abs=0.1) and float(reported[1]) > 0.1
    refused = CliRunner().invoke(evaluate, [*asked, "--other-machine"])
    assert refused.exit_code == 2 and "measures the whole model on this machine" in " ".join(refused.output.split())


@pytest.mark.slow
def test_the_whole_models_time_is_the_median_of_warm_passes(minilm_pipeline: Path) -> None:
    """The first ten are none of them."""
    seconds = [9.0] * 10 + [1.0] * 14 + [2.0] * 2 + [5.0] * 14
    clock = iter(moment_s for pass_s in seconds for moment_s in (100.0, 100.0 + pass_s))
    assert whole_model_s(minilm_pipeline, 24, lambda: next(clock)) == 2.0


def test_pipelines_that_training_is_set_are_asked_too(minilm_pipeline: Path, elsewhere: Path, tmp_path: Path) -> None:
    own = json.dumps([{"folder": str(minilm_pipeline), "slo_ms": 300, "profile": str(elsewhere)}])
    asked = ["--workload", "bert-4", "--set", f"pipelines={own}", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(train, asked)
    assert result.exit_code == 2 and "cpu_model was 'abacus'" in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()


def test_of_several_profiles_the_one_of_this_machine_is_taken(
    minilm_pipeline: Path, elsewhere: Path, tmp_path: Path
) -> None:
    elsewhere.rename(tmp_path / "a.parquet")
    assert bundled.nearest(minilm_pipeline, this_machine(), tmp_path).name == "a.parquet"
    profile_of(tmp_path, minilm_pipeline).rename(tmp_path / "b.parquet")
    assert bundled.nearest(minilm_pipeline, this_machine(), tmp_path).name == "b.parquet"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about profiles."""
    return [record.message for record in caplog.records if record.name == "smoe.profile"]


def making(pipeline: Path, policy: str, settings: Path) -> Making:
    own = ControllerSettings(
        "http://127.0.0.1:9", pipeline, policy=policy, slo_s=0.3, policy_settings=settings, scale_segments=False
    )
    limits = LimitSettings(space=ConfigurationSpace(gpu_shares=()))
    return Making(own, load_topology(pipeline), limits, CustomPipeline(str(pipeline), 300.0).served().prices)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["smoe", "last-window"])
def test_a_controllers_policy_refuses_a_named_profile_unless_it_is_meant(
    minilm_pipeline: Path, elsewhere: Path, tmp_path: Path, policy: str
) -> None:
    settings = tmp_path / "policy.toml"
    settings.write_text(f'profile = "{elsewhere}"\n')
    with pytest.raises(SettingsError, match=r"another machine: cpu_model was .*other_machine = true"):
        make_policy(making(minilm_pipeline, policy, settings))
    for meant in ("other_machine", "cluster"):
        settings.write_text(f'profile = "{elsewhere}"\n{meant} = true\n')
        assert make_policy(making(minilm_pipeline, policy, settings)).name == policy


@pytest.mark.slow
@pytest.mark.parametrize(("more", "said"), [("", 1), ("other_machine = true", 0)])
def test_of_a_profile_that_nobody_named_the_learnt_policy_says_it_once_and_goes_on(
    minilm_pipeline: Path, elsewhere: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, more: str, said: int,
) -> None:  # fmt: skip
    bundled.warn_once.cache_clear()
    monkeypatch.setattr("simulation.profiles.model.bundled.nearest", lambda *_: elsewhere)
    settings = tmp_path / "policy.toml"
    settings.write_text(f"{more}\n")
    with caplog.at_level(logging.WARNING, "smoe.profile"):
        names = {make_policy(making(minilm_pipeline, "smoe", settings)).name for _ in range(2)}
    messages = warnings(caplog)
    assert names == {"smoe"} and len(messages) == said
    assert all("smoe plans with a profile of another machine: cpu_model was" in message for message in messages)


@pytest.mark.slow
def test_a_policy_on_the_machine_of_its_profile_says_nothing(
    minilm_pipeline: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundled.warn_once.cache_clear()
    settings = tmp_path / "policy.toml"
    settings.write_text(f'profile = "{profile_of(tmp_path, minilm_pipeline)}"\n')
    make_policy(making(minilm_pipeline, "smoe", settings))
    assert not warnings(caplog)


def test_whether_the_other_machine_is_meant_is_true_or_false(minilm_pipeline: Path, tmp_path: Path) -> None:
    settings = tmp_path / "policy.toml"
    settings.write_text('other_machine = "yes"\n')
    with pytest.raises(Exception, match="other_machine is 'yes'; it should be a valid boolean"):
        make_policy(making(minilm_pipeline, "smoe", settings))
