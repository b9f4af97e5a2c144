"""Settings that are refused by name, and what is built from good ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.build import build_controller, shown
from autoscaler.errors import SettingsError
from autoscaler.logger import read_contexts
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.policy.static import StaticPolicy
from autoscaler.settings import ControllerSettings
from autoscaler.topology import load_topology
from moe.errors import GroupingError, ManifestError
from moe.grouping import group
from moe.manifest import load
from platform_words.memory import CONTAINER, FORKED, RuntimeMemory
from tests.contract.platform.server import AUTH, OpenFaas
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.autoscaler.servers import serve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path / "m")


def settings(folder: Path, **more: Any) -> ControllerSettings:
    return ControllerSettings(gateway_url="http://127.0.0.1:9", manifest_dir=folder, **more)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interval_s", 0.0),
        ("interval_s", float("nan")),
        ("window_s", -1.0),
        ("slo_s", 0.0),
        ("stale_s", 0.0),
        ("budget_per_hour", 0.0),
        ("policy", "magic"),
        ("gateway_url", "localhost:8080"),
        ("prometheus_url", "ftp://x"),
        ("min_replicas", 9),
        ("max_functions", 1),
        ("cooldown_s", float("inf")),
        ("max_step_factor", 1.0),
        ("max_step_factor", float("nan")),
        ("unschedulable_s", -1.0),
        ("alpha", 0.0),
        ("windows_per_file", 0),
        ("log_mb", -1),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_its_name(key: str, value: object) -> None:
    good = settings(Path("m"))
    with pytest.raises(SettingsError, match=f"^{key} is "):
        replace(good, **{key: value})  # type: ignore[arg-type]


def test_hpa_without_any_metric_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="hpa needs one metric"):
        build_controller(settings(folder, policy="hpa", policy_settings={"cpu_target": 0.0, "concurrency_target": 0.0}))


def test_the_password_is_neither_shown_nor_logged(folder: Path) -> None:
    secret = settings(folder, password="very-secret")
    assert "very-secret" not in repr(secret) and "very-secret" not in str(shown(secret))


def test_the_topology_is_the_manifest_s(folder: Path) -> None:
    topology = load_topology(folder)
    assert topology.pipeline == "tiny" and topology.layers == 2
    assert [node.id for node in topology.nodes][:4] == ["ingress", "segment-0", "segment-1", "segment-2"]
    assert [node.id for node in topology.experts(1)] == ["expert-1-0", "expert-1-1"]
    assert topology.nodes[0].function == "tiny" and topology.experts(0)[0].function == "tiny-expert-0-0"
    assert all(node.flops_per_token > 0 and node.weights_bytes > 0 for node in topology.experts(0))
    assert set(topology.edges) == set(load(folder, verify=False).edges)
    assert len(topology.manifest_sha256) == 64


def test_nodes_share_functions_as_the_deployment_groups_them(folder: Path) -> None:
    deployed = load_topology(folder, max_functions=4).functions()
    oracle = {function.name: function.nodes for function in group(load(folder, verify=False), 4).functions}
    assert {name: {node.id for node in nodes} for name, nodes in deployed.items()} == {
        name: set(nodes) for name, nodes in oracle.items()
    }
    with pytest.raises(GroupingError):
        load_topology(folder, max_functions=1)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        build_controller(settings(tmp_path))


def test_the_default_is_hpa_over_direct_scrapes_with_a_window_of_one_interval(folder: Path) -> None:
    controller, window_s = build_controller(settings(folder, interval_s=4.0))
    assert window_s == controller.window_s == 4.0
    assert isinstance(controller.policy, HpaPolicy)
    assert controller.policy.settings.kinds == {"expert", "segment"}
    assert isinstance(controller._source._reader, ScrapeSource)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("orchestration", "more", "logged", "expected"),
    [
        ("process", {}, "process", FORKED),
        ("kubernetes", {}, "kubernetes", CONTAINER),
        ("containerd", {}, "containerd", CONTAINER),
        ("process", {"password": "wrong"}, None, CONTAINER),
        ("kubernetes", {"runtime_mb": 99}, "kubernetes", RuntimeMemory.same(99)),
        ("kubernetes", {"orchestration": "process"}, "process", FORKED),
    ],
)
def test_memory_of_eq_2_is_that_of_what_the_gateway_reports_that_functions_run_in(
    folder: Path, tmp_path: Path, orchestration: str, more: dict[str, Any], logged: str | None, expected: RuntimeMemory
) -> None:
    gateway = OpenFaas({})
    gateway.orchestration = orchestration
    with serve(gateway.reply) as server:
        asked = settings(folder, **{"password": AUTH[1], "policy": "static", "log_dir": tmp_path / "log", **more})
        controller, _ = build_controller(replace(asked, gateway_url=server.url))
        controller.tick(1000.0)
        controller.close()
    assert controller._limits.runtime == expected
    (context,) = read_contexts(tmp_path / "log")
    assert context["settings"]["orchestration"] == logged
    assert gateway.asked_about == (0 if "orchestration" in more or "password" in more else 1)


def test_memory_is_that_of_containers_where_no_gateway_answers_and_on_a_cluster(folder: Path) -> None:
    for more in ({}, {"platform": "kubernetes"}):
        controller, _ = build_controller(settings(folder, policy="static", **more), FakePlatform({}))
        assert controller._limits.runtime == CONTAINER


@pytest.mark.parametrize(
    ("changes", "oldest_s"),
    [
        ({"prometheus_url": "http://127.0.0.1:9"}, 60.0),
        ({"prometheus_url": "http://127.0.0.1:9", "interval_s": 25.0}, 75.0),
        ({"prometheus_url": "http://127.0.0.1:9", "stale_s": 7.0}, 7.0),
        ({}, 15.0),
        ({"interval_s": 6.0}, 18.0),
    ],
)
def test_the_oldest_data_decided_on_are_three_intervals_old_and_no_younger_than_its_source_can_give(
    folder: Path, changes: dict[str, Any], oldest_s: float
) -> None:
    controller, _ = build_controller(settings(folder, **changes))
    assert controller._source._reader._stale_s == oldest_s  # type: ignore[attr-defined]


@pytest.mark.slow
def test_prometheus_has_a_longer_window_and_policies_follow_their_settings(folder: Path) -> None:
    controller, window_s = build_controller(
        settings(
            folder,
            prometheus_url="http://127.0.0.1:9",
            policy="hpa",
            policy_settings={"cpu_target": 0.0, "concurrency_target": 0.5},
            max_replicas=3,
            scale_segments=False,
            scale_ingress=True,
        )
    )
    assert window_s == 30.0 and isinstance(controller._source._reader, PrometheusSource)  # type: ignore[attr-defined]
    assert isinstance(controller.policy, HpaPolicy)
    assert controller.policy.settings.targets == {"concurrency": 0.5}
    assert controller.policy.settings.kinds == {"expert", "ingress"} and controller.policy.settings.max_replicas == 3
    assert controller._limits.space.replicas_max == 3
    static, _ = build_controller(settings(folder, policy="static"))
    assert isinstance(static.policy, StaticPolicy)
