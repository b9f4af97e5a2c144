"""``auto`` runs the staffing rule where it plans with what was measured here, else HPA, and states why."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler import choice
from autoscaler.build import build_controller
from autoscaler.choice import Choice, chosen
from autoscaler.contract import ConfigurationSpace
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making, make_policy
from autoscaler.policy.fallback import FallbackPolicy
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.prices import load_prices
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology
from rl.staffing import fit
from simulation.profiles.model import bundled
from simulation.profiles.model.storage import load
from tests.unit.autoscaler.manifests import write_pipeline

PROFILE = bundled.committed()[0]
"""This tree's profile of the default pipeline, of a machine with a core that is one."""
SLO_S = 1.0


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the one that :data:`PROFILE` was measured on."""
    machine = load(PROFILE).metadata.machine
    for module in (fit, bundled):
        monkeypatch.setattr(module, "this_machine", lambda: machine)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is none that this tree has a profile of."""
    machine = replace(load(PROFILE).metadata.machine, cpu_model="another")
    for module in (fit, bundled):
        monkeypatch.setattr(module, "this_machine", lambda: machine)


def settings(folder: Path, **more: Any) -> ControllerSettings:
    given = {"slo_s": SLO_S, "cpu_scale": 0.01, **more}
    return ControllerSettings("http://127.0.0.1:9", folder, **given)


def making(folder: Path, **more: Any) -> Making:
    topology = load_topology(folder, more.pop("functions", 0))
    return Making(
        settings(folder, **more), topology, LimitSettings(space=ConfigurationSpace(gpu_shares=())), load_prices()
    )


def by_hpa(made: Choice, why: str) -> bool:
    """Whether HPA runs, and the sentence states ``why``."""
    named = made.making.settings.policy == "hpa" and made.sentence.startswith("auto: hpa, because ")
    return named and why in made.sentence


@pytest.mark.slow
@pytest.mark.usefixtures("there")
def test_with_a_target_and_a_profile_of_this_machine_the_rule_runs_under_guard(
    minilm_pipeline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "smoe.autoscaler"):
        controller, _ = build_controller(settings(minilm_pipeline))
    sentence = f"auto: staffing, planning with {PROFILE}"
    assert [record.message for record in caplog.records if "auto" in record.message] == [sentence]
    assert controller.policy.name == "staffing" and isinstance(controller.policy, FallbackPolicy)


@pytest.mark.usefixtures("there")
def test_it_plans_with_the_cores_that_the_platform_has(minilm_pipeline: Path) -> None:
    table = chosen(making(minilm_pipeline)).making.settings.policy_settings
    assert isinstance(table, dict) and (table["profile"], table["cpu_scale"]) == (str(PROFILE), 0.01)
    named = {"profile": str(PROFILE)}
    cluster = chosen(making(minilm_pipeline, platform="kubernetes", policy_settings=named)).making.settings
    assert isinstance(cluster.policy_settings, dict) and cluster.policy_settings["cpu_scale"] == 1.0
    given = chosen(making(minilm_pipeline, policy_settings={"cpu_scale": 0.5, "load": 0.7})).making.settings
    assert given.policy_settings == {"cpu_scale": 0.5, "load": 0.7, "profile": str(PROFILE), "hpa": {}}


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"slo_s": None}, "there is no target (--slo-ms)", id="no target"),
        pytest.param({"slo_s": 0.1}, "standbys open too late for an SLO below 150 ms", id="a short target"),
        pytest.param({"cpu_scale": None}, "no profile is named", id="a gateway with a core of unknown size"),
        pytest.param({"platform": "kubernetes"}, "no profile of the machines that functions run on", id="a cluster"),
        pytest.param({"functions": 4}, "functions serve several nodes each", id="grouped functions"),
    ],
)
def test_where_the_rule_does_not_fit_hpa_runs_and_the_reason_is_stated(
    minilm_pipeline: Path, more: dict[str, Any], why: str
) -> None:
    made = chosen(making(minilm_pipeline, **more))
    assert by_hpa(made, why)
    assert isinstance(make_policy(made.making), HpaPolicy)


@pytest.mark.usefixtures("elsewhere")
def test_a_profile_of_another_machine_is_planned_with_only_where_it_is_meant(minilm_pipeline: Path) -> None:
    named = {"profile": str(PROFILE)}
    assert by_hpa(chosen(making(minilm_pipeline, policy_settings=named)), "was measured on another machine: cpu_model")
    meant = chosen(making(minilm_pipeline, policy_settings={**named, "other_machine": True}))
    assert meant.sentence == f"auto: staffing, planning with {PROFILE}"


@pytest.mark.usefixtures("elsewhere")
def test_without_a_profile_of_this_machine_replicas_keep_their_size(minilm_pipeline: Path) -> None:
    made = chosen(making(minilm_pipeline))
    assert made.sentence.startswith(f"auto: staffing, {fit.AS_DEPLOYED}, as there is no profile of minilm")
    assert "`smoe lab profile minilm --out FILE` measures one" in made.sentence
    assert made.making.settings.policy_settings == {"plan": False, "hpa": {}}
    assert make_policy(made.making).name == "staffing"
    asked = chosen(making(minilm_pipeline, policy_settings={"plan": False}, platform="kubernetes"))
    assert asked.sentence == f"auto: staffing, {fit.AS_DEPLOYED}, as its settings ask for"


@pytest.mark.usefixtures("there")
def test_modelled_call_times_are_planned_with_only_where_they_are_named(tmp_path: Path) -> None:
    tiny = write_pipeline(tmp_path / "tiny")
    assert "there is no profile of tiny" in chosen(making(tiny)).sentence
    assert by_hpa(
        chosen(making(tiny, policy_settings={"profile": str(PROFILE)})), "of pipeline 'minilm', not of 'tiny'"
    )
    named = chosen(making(tiny, policy_settings={"workload": "bert-4"}))
    assert (
        named.sentence == "auto: staffing, planning with the modelled call times of bert-4, as its settings name them"
    )


def test_on_a_pipeline_that_generates_text_hpa_runs(minilm_pipeline: Path) -> None:
    encoder = making(minilm_pipeline)
    decoder = replace(encoder, topology=replace(encoder.topology, generates=True))
    assert by_hpa(chosen(decoder), "generates text")


@pytest.mark.usefixtures("there")
def test_without_torch_hpa_runs(minilm_pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, fit.RULE, None)
    assert by_hpa(chosen(making(minilm_pipeline)), "staffing cannot be loaded here")
    monkeypatch.setattr(choice, "FIT", "no_such_package.fit:table_of")
    assert by_hpa(chosen(making(minilm_pipeline)), "No module named 'no_such_package'")


@pytest.mark.slow
@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"standby": 3}, "'standby' is not known"),
        ({"profile": "nowhere.parquet"}, "nowhere.parquet"),
        ({"cpu_target": 0.5}, r"cpu_target is a setting of hpa, which stands in \[hpa\]"),
        ({"hpa": {"cpu": 0.5}}, "'cpu' is not known"),
    ],
)
def test_wrong_settings_are_refused_and_not_fallen_back_from(
    minilm_pipeline: Path, table: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        build_controller(settings(minilm_pipeline, policy_settings=table))


def test_hpas_settings_stand_in_their_table_with_either(tmp_path: Path) -> None:
    folder = write_pipeline(tmp_path / "tiny")
    table = {"spare": 0.5, "hpa": {"cpu_target": 0.3}, "burst": {"standbys": 2}}
    made = chosen(making(folder, policy_settings=table, slo_s=None)).making
    assert made.settings.policy_settings == {"cpu_target": 0.3, "burst": {"standbys": 2}}
    assert make_policy(made).name == "hpa"


def test_a_named_policy_is_left_as_it_is(tmp_path: Path) -> None:
    named = making(write_pipeline(tmp_path / "tiny"), policy="kpa")
    assert chosen(named) == Choice(named)
