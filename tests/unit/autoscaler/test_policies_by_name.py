"""Policies by name: built from settings, plans and settings files, or refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoscaler.build import build_controller
from autoscaler.contract import Policy
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.fallback import FallbackPolicy
from autoscaler.policy.keda import KedaPolicy, Trigger
from autoscaler.policy.kpa import KpaPolicy
from autoscaler.policy.static import StaticPolicy
from autoscaler.policy.token_load import LoadClass, TokenLoadPolicy
from autoscaler.policy.vertical import VerticalHpaPolicy
from autoscaler.policy.vpa import VpaPolicy
from autoscaler.settings import POLICY_NAMES, ControllerSettings
from autoscaler.stored_deployment import Plan, load_plan, save_plan
from tests.unit.autoscaler.builders import configuration, topology
from tests.unit.autoscaler.manifests import write_pipeline

FUNCTION = "tiny-expert-0-0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path / "m")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(Plan("tiny", {FUNCTION: configuration(3, memory_mb=512)}, {"method": "test"}), path)
    return path


def made(folder: Path, policy: str, **more: Any) -> Policy:
    settings = ControllerSettings("http://127.0.0.1:9", folder, policy=policy, **more)
    return build_controller(settings)[0].policy


def with_file(folder: Path, policy: str, text: str) -> Policy:
    path = folder.parent / "policy.toml"
    path.write_text(text)
    return made(folder, policy, policy_settings=path, max_replicas=5, scale_segments=False)


@pytest.mark.slow
def test_every_name_makes_a_policy_of_that_name(folder: Path, plan: Path) -> None:
    assert [made(folder, name, plan=plan, slo_s=0.1).name for name in POLICY_NAMES] == list(POLICY_NAMES)


@pytest.mark.slow
def test_the_controller_s_bounds_and_kinds_reach_every_policy(folder: Path) -> None:
    kpa = with_file(folder, "kpa", 'metric = "rps"\nstable_window_s = 30\n')
    assert isinstance(kpa, KpaPolicy) and (kpa.settings.metric, kpa.settings.stable_window_s) == ("rps", 30)
    assert kpa.settings.max_replicas == 5 and kpa.settings.kinds == {"expert"}
    vpa = with_file(folder, "vpa", "half_life_s = 60\nwith_hpa = true\n[hpa]\ncpu_target = 0\n")
    assert isinstance(vpa, VpaPolicy) and (vpa.settings.half_life_s, vpa.settings.kinds) == (60, {"expert"})
    assert vpa._hpa is not None and (vpa._hpa.settings.cpu_target, vpa._hpa.settings.max_replicas) == (0, 5)
    keda = with_file(folder, "keda", '[[triggers]]\nmetric = "rps"\nthreshold = 9.5\n')
    assert isinstance(keda, KedaPolicy) and keda.settings.triggers == (Trigger("rps", 9.5),)
    text = "[[classes]]\ncpu_cores = 1\n[[classes]]\ncpu_cores = 2\ntokens_per_s = 50\n[[classes]]\ngpu_share = 0.5\n"
    elastic = with_file(folder, "elasticmoe", text)
    assert isinstance(elastic, TokenLoadPolicy) and elastic.settings.max_replicas == 5
    assert elastic.settings.classes == (LoadClass(1), LoadClass(2, tokens_per_s=50), LoadClass(gpu_share=0.5))


@pytest.mark.parametrize(
    ("policy", "text", "sentence"),
    [
        ("kpa", "stable_window = 30", "'stable_window' is not known; the keys are default_concurrency"),
        ("kpa", "max_replicas = 3", "max_replicas is a setting of the controller"),
        ("kpa", 'stable_window_s = "1m"', "stable_window_s is '1m'; it should be a valid number"),
        ("kpa", "stable_window_s = inf", "stable_window_s is inf; it should be a finite number"),
        ("kpa", "stable_window_s = 0", "kpa: stable_window_s is 0; it should be greater than 0"),
        ("kpa", "metric = 3", "metric is 3; it should be 'concurrency' or 'rps'"),
        ("keda", "up_pods = 1.5", "up_pods is 1.5; it should be a valid integer"),
        ("keda", "triggers = 3", "triggers is 3; it should be a valid array"),
        ("keda", "[[triggers]]\nname = 'x'", "'triggers.0.name' is not known"),
        ("elasticmoe", "x = [", "cannot be read"),
        ("hpa", "tolerance = 1", "hpa: tolerance is 1; it should be less than 1"),
        ("openfaas", "cpu = 0.5", "'cpu' is not known; the keys are concurrency_target, cpu_target"),
        ("static", "", "static takes none"),
        ("static", "cpu_target = 0.5", "static takes none"),
    ],
)
def test_a_wrong_settings_file_is_refused_by_key(folder: Path, policy: str, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        with_file(folder, policy, text)
    assert sentence in str(caught.value)


@pytest.mark.slow
def test_a_table_is_taken_in_place_of_a_file_with_hpas_settings_next_to_the_policys(folder: Path) -> None:
    kpa = made(folder, "kpa", policy_settings={"metric": "rps", "hpa": {"cpu_target": 0.4}})
    assert isinstance(kpa, KpaPolicy) and kpa.settings.metric == "rps"
    followed = made(folder, "kpa", policy_settings={"hpa": {"cpu_target": 0.4}}, slo_s=0.1, fallback_windows=2)
    assert isinstance(followed, FallbackPolicy)
    assert followed._other.settings.targets == {"cpu": 0.4, "concurrency": 0.7}  # type: ignore[attr-defined]
    for wrong, sentence in (({"hpa": 3}, "takes a table"), ({"hpa": {"cpu": 0.4}}, "'cpu' is not known")):
        with pytest.raises(SettingsError, match=sentence):
            made(folder, "static", policy_settings=wrong, slo_s=0.1, fallback_windows=2)


@pytest.mark.slow
def test_plans_are_run_by_the_policies_that_take_one(folder: Path, plan: Path) -> None:
    for name in ("serverlessmoe", "static"):
        policy = made(folder, name, plan=plan)
        assert isinstance(policy, StaticPolicy)
        assert policy._configurations == {FUNCTION: configuration(3, memory_mb=512)}
    tuned = made(folder, "tuned-hpa", plan=plan)
    assert isinstance(tuned, VerticalHpaPolicy) and set(tuned.verticals) == {FUNCTION}
    for name in ("serverlessmoe", "tuned-hpa"):
        with pytest.raises(SettingsError, match="plan is None"):
            made(folder, name)


@pytest.mark.slow
def test_openfaas_draws_for_every_expert_and_by_the_seed(folder: Path) -> None:
    first, again, other = (made(folder, "openfaas", policy_seed=seed) for seed in (1, 1, 2))
    assert isinstance(first, VerticalHpaPolicy) and isinstance(again, VerticalHpaPolicy)
    assert isinstance(other, VerticalHpaPolicy)
    assert sorted(first.verticals) == [f"tiny-expert-{i}-{j}" for i in (0, 1) for j in (0, 1)]
    assert first.verticals == again.verticals != other.verticals


def maker(making: Making) -> Policy:
    """A policy of another package."""
    return StaticPolicy(name=f"own-{making.topology.pipeline}")


@pytest.mark.slow
def test_a_policy_of_another_package_is_named_by_its_maker(folder: Path) -> None:
    assert made(folder, f"{__name__}:maker").name == "own-tiny"
    for name in (f"{__name__}:nothing", "no_such_package.x:maker"):
        with pytest.raises(SettingsError, match="cannot be loaded"):
            made(folder, name)


def failing(making: Making) -> Policy:
    return making.nowhere  # type: ignore[attr-defined,no-any-return]


@pytest.mark.slow
def test_a_custom_maker_that_fails_is_reported_with_its_line(folder: Path) -> None:
    line = failing.__code__.co_firstlineno + 1
    with pytest.raises(SettingsError, match=rf"maker failed: AttributeError: .*nowhere.*{__file__}:{line}\)"):
        made(folder, f"{__name__}:failing")
    with pytest.raises(SettingsError, match=r"maker failed: TypeError: .*not callable"):
        made(folder, f"{__name__}:__name__")


def test_a_plan_survives_its_file(plan: Path) -> None:
    loaded = load_plan(plan)
    assert loaded == Plan("tiny", {FUNCTION: configuration(3, memory_mb=512)}, {"method": "test"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "version is 2; it should be 1"),
        ({"extra": 1}, "'extra' is not known"),
        ({"configurations": []}, "configurations is []; it should be an object"),
        ({"configurations": {"f": {"memory_mb": 1}}}, "configurations.f.cpu_cores is missing"),
        ({"pipeline": "other"}, "is of the pipeline 'other', not of 'm'"),
        ({"pipeline": "m"}, "the pipeline 'm' has no function 'tiny-expert-0-0'"),
    ],
)
def test_a_wrong_plan_is_refused_with_file_and_rule(plan: Path, change: dict[str, Any], sentence: str) -> None:
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
    with pytest.raises(SettingsError) as caught:
        load_plan(plan, topology())
    assert str(plan) in str(caught.value) and sentence in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("memory_mb", "1"), ("replicas", True), ("gpu_share", 0.5)])
def test_a_plan_s_configuration_must_be_one(plan: Path, key: str, value: object) -> None:
    document = json.loads(plan.read_text())
    document["configurations"][FUNCTION][key] = value
    plan.write_text(json.dumps(document))
    with pytest.raises(SettingsError, match=FUNCTION):
        load_plan(plan)
