"""From settings and a kubeconfig file to a controller's side of a cluster: leadership, metrics, who acts."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client

from autoscaler.build import build_controller
from autoscaler.cluster import ClusterSide
from autoscaler.commands import autoscale
from autoscaler.errors import PlatformError, SettingsError, UndecidedError
from autoscaler.lease import Elector, LeaseSettings, NotLeaderError
from autoscaler.platforms.kubernetes import KubernetesClient
from autoscaler.platforms.kubernetes.client import api_client
from autoscaler.policy.fallback import FallbackPolicy
from autoscaler.progress import Progress
from autoscaler.settings import ControllerSettings
from gateway.backends.kubernetes.connection import connect
from gateway.contract import BackendError
from tests.doubles.kubernetes.functions import put, put_openfaas, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.manifests import write_pipeline

F = "m-expert-0-0"


@pytest.fixture
def kubeconfig(double: Running, tmp_path: Path) -> Path:
    """A file as kubectl has it, with a token that the double knows."""
    double.set(users={"s3cret": "controller"})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": double.url}}],
        "users": [{"name": "u", "user": {"token": "s3cret"}}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    return path


def side(kubeconfig: Path, **changes: Any) -> ClusterSide:
    settings = ControllerSettings("http://127.0.0.1:1", Path(), platform="kubernetes", kubeconfig=kubeconfig, **changes)
    return ClusterSide(settings, "m")


def store_of(double: Running) -> KubernetesClient:
    """Where another controller keeps the lease."""
    named = client.Configuration(host=double.url)
    named.api_key["BearerToken"] = "Bearer s3cret"
    return KubernetesClient(api_client(named), "openfaas-fn")


def orders(double: Running) -> list[str]:
    """Writes so far, the lease's left out."""
    return [one for one in writes(double) if not one.endswith(" leases")]


def test_a_kubeconfig_leads_to_the_cluster(double: Running, kubeconfig: Path) -> None:
    put(double, spec(F))
    assert side(kubeconfig).platform.configurations() == {F: configuration()}
    assert connect(kubeconfig).authorization() == "Bearer s3cret"


def test_no_cluster_is_a_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(PlatformError, match="no way to reach a Kubernetes API server"):
        side(missing)
    with pytest.raises(BackendError, match="no way to reach a Kubernetes API server"):
        connect(missing)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not: [yaml",
        b"\x00\xff\xfe",
        b"just a text",
        b"- a\n- list",
        b"{}",
        b"current-context: c",
        b"contexts: 3",
        b"current-context: c\ncontexts: [{name: c}]",
        b"current-context: c\ncontexts: [{name: c, context: {cluster: none, user: u}}]",
        b"current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        b"clusters: [{name: c, cluster: {server: 'http://a'}}]\nusers: 3",
    ],
    ids=[
        "empty",
        "no YAML",
        "bytes",
        "text",
        "list",
        "nothing",
        "no contexts",
        "number",
        "half",
        "elsewhere",
        "users",
    ],
)
def test_a_kubeconfig_that_is_none_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(PlatformError, match=r"no way to reach a Kubernetes API server by .*config: ."):
        side(path)
    with pytest.raises(BackendError, match=r"no way to reach a Kubernetes API server by .*config: ."):
        connect(path)


def test_a_gateway_with_broken_certificates_says_so(tmp_path: Path) -> None:
    named = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": "bm9uZQ=="}
    users = [{"name": "u", "user": {}}]
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**named, "clusters": [{"name": "c", "cluster": cluster}], "users": users}))
    with pytest.raises(BackendError, match="certificates"):
        connect(path)


def test_with_a_lease_nothing_is_written_before_it_is_held(double: Running, kubeconfig: Path) -> None:
    put_openfaas(double, F)
    cluster_side = side(kubeconfig, lease="controller")
    cluster_side.platform.configurations()
    cluster_side.keep()
    assert not cluster_side.leads() and writes(double) == []
    stop = threading.Event()
    cluster_side.start(stop)
    assert cluster_side.wait(stop, 0.0) is False and cluster_side.leads()
    cluster_side.keep()
    assert "patch deployments" in writes(double)
    stop.set()
    cluster_side.close()
    assert double.do(lambda: double.store.get("leases", "openfaas-fn", "controller"))["spec"]["holderIdentity"] == ""


def test_a_tick_that_hung_writes_nothing_when_it_wakes(double: Running, kubeconfig: Path) -> None:
    put(double, spec(F))
    now_s = [0.0]
    settings = ControllerSettings(
        "http://127.0.0.1:1", Path(), platform="kubernetes", kubeconfig=kubeconfig, lease="controller"
    )
    cluster_side = ClusterSide(settings, "m", progress=Progress(30.0, lambda: now_s[0]))
    stop = threading.Event()
    cluster_side.start(stop)
    assert cluster_side.wait(stop, 0.0) is False
    present = cluster_side.platform.configurations()[F]
    now_s[0] += 29.0
    cluster_side.platform.apply(F, present, configuration(2))
    now_s[0] += 29.0  # the order before was a sign
    cluster_side.platform.apply(F, configuration(2), configuration(3))
    before = orders(double)
    now_s[0] += 31.0
    with pytest.raises(NotLeaderError, match="its tick has stood still for too long"):
        cluster_side.platform.apply(F, configuration(3), configuration(4))
    cluster_side.keep()
    assert orders(double) == before != [] and not cluster_side.leads()
    stop.set()
    cluster_side.close()


def test_a_lease_whose_thread_ended_is_reported(double: Running, kubeconfig: Path) -> None:
    found, stop = side(kubeconfig, lease="controller"), threading.Event()
    found.start(stop)
    assert found.trouble() == ""
    stop.set()
    found.close()
    assert "nobody stands for the lease any more" in found.trouble()


def lost_call(kubeconfig: Path, folder: Path) -> str:
    """What ``smoe autoscale --ticks 1 --lease`` ends with where it does not come to lead."""
    manifest = write_pipeline(folder / "pipelines" / "tiny")
    arguments = ["--gateway", "http://127.0.0.1:9", "--state", str(folder), "--manifest", str(manifest)]
    arguments += ["--pipeline", "tiny", "--interval", "0.01s", "--ticks", "1", "--lease", "controller"]
    arguments += ["--platform", "kubernetes", "--kubeconfig", str(kubeconfig)]
    done = CliRunner().invoke(autoscale, arguments)
    assert done.exit_code == 1 and isinstance(done.exception, UndecidedError), done.output
    assert done.stdout == ""  # no tick
    return str(done.exception)


@pytest.mark.slow
def test_counted_ticks_end_where_no_cluster_can_be_reached_to_lead(
    double: Running, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseSettings, "takeover_s", 0.5)
    kubeconfig.write_text(kubeconfig.read_text().replace(double.url, "http://127.0.0.1:9"))
    sentence = lost_call(kubeconfig, tmp_path)
    assert sentence.startswith("no tick, as this controller did not lead within 0.5 s: the lease controller is not")
    assert "at http://127.0.0.1:9 failed" in sentence


@pytest.mark.slow
def test_counted_ticks_end_where_another_controller_keeps_the_lease(
    double: Running, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Elector(store_of(double), LeaseSettings("controller", "other-1"))
    assert other.step()
    monkeypatch.setattr(LeaseSettings, "takeover_s", 0.5)
    assert lost_call(kubeconfig, tmp_path).endswith("the lease controller is not this controller's: other-1 holds it")
    assert orders(double) == [] and other.leads()


def test_without_a_count_a_controller_waits_to_lead_for_as_long_as_it_takes(
    double: Running, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseSettings, "takeover_s", 0.0)
    other = Elector(store_of(double), LeaseSettings("controller", "other-1"))
    assert other.step()
    waiting, stop = side(kubeconfig, lease="controller"), threading.Event()
    looks: list[float] = []

    def wait(wait_s: float) -> bool:
        looks.append(wait_s)
        return len(looks) > 3

    monkeypatch.setattr(stop, "wait", wait)
    assert waiting.wait(stop, 1.0) is True and looks == [1.0, 0.2, 0.2, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize("watching", [{"dry_run": True}, {"shadow": True}])
def test_who_only_watches_takes_no_lease_and_keeps_nothing(
    double: Running, kubeconfig: Path, watching: dict[str, bool]
) -> None:
    put_openfaas(double, F)
    cluster_side = side(kubeconfig, lease="controller", **watching)
    stop = threading.Event()
    cluster_side.start(stop)
    try:
        assert cluster_side.wait(stop, 0.0) is False
        cluster_side.platform.configurations()
        cluster_side.keep()
        assert writes(double) == [] and not cluster_side.leads()
    finally:
        stop.set()
        cluster_side.close()


@pytest.mark.slow
def test_a_shadow_on_the_command_line_reports_both_costs_and_writes_nothing(
    double: Running, kubeconfig: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smoe.autoscaler")
    put(double, spec("tiny-expert-0-0", labels={"smoe.pipeline": "tiny"}), 2)
    folder = write_pipeline(tmp_path / "pipelines" / "tiny")
    arguments = ["--gateway", "http://127.0.0.1:9", "--state", str(tmp_path), "--manifest", str(folder)]
    arguments += ["--pipeline", "tiny", "--interval", "0.01s", "--ticks", "2", "--shadow", "--json", "--lease", "l"]
    arguments += ["--platform", "kubernetes", "--kubeconfig", str(kubeconfig)]
    done = CliRunner().invoke(autoscale, arguments)
    assert isinstance(done.exception, UndecidedError), done.output  # the cluster answers, the metrics' gateway does not
    _, row = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    assert row["shadow"]["cost_real"] == row["shadow"]["cost_shadow"] > 0 and row["stale"]
    total = row["shadow"]["total"]["provisioned"]
    assert total["real"] == total["shadow"] > 0 and total["seconds"] > 0
    assert row["shadow"]["busy_real"] is None and row["shadow"]["total"]["busy"]["seconds"] == 0
    (verdict,) = [text for text in caplog.messages if text.startswith("shadow: ")]
    assert "shadow: hpa would have cost $" in verdict and " provisioned instead of $" in verdict
    assert writes(double) == []


def test_metrics_report_conditions_calls_and_leadership(double: Running, kubeconfig: Path) -> None:
    put(double, spec(F))
    cluster_side = side(kubeconfig)
    double.do(lambda: double.cluster.lose_node("node-1"))
    cluster_side.platform.configurations()
    registry = prometheus_client.CollectorRegistry()
    cluster_side.register(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert f'smoe_controller_conditions{{condition="node lost",function="{F}",pipeline="m"}} 1.0' in text
    assert 'smoe_controller_api_calls_total{code="200",pipeline="m",resource="pods",verb="GET"} 1.0' in text
    assert 'smoe_controller_leader{pipeline="m"} 1.0' in text


def test_a_watched_policy_keeps_its_name_and_hpa_stands_behind_it(tmp_path: Path) -> None:
    settings = ControllerSettings(
        "http://127.0.0.1:1", write_pipeline(tmp_path / "p"), policy="static", slo_s=0.1, fallback_windows=3
    )
    controller, _ = build_controller(settings)
    assert isinstance(controller.policy, FallbackPolicy) and controller.policy.name == "static"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "watched"),
    [
        ({"policy": "smoe", "slo_s": 0.1}, True),
        ({"policy": "smoe", "slo_s": 0.1, "fallback_windows": 0}, False),
        ({"policy": "hpa", "slo_s": 0.1}, False),
        ({"policy": "hpa", "slo_s": 0.1, "fallback_windows": 2}, True),
    ],
)
def test_a_learnt_policy_with_a_target_is_watched_unless_that_is_switched_off(
    tmp_path: Path, changes: dict[str, Any], watched: bool
) -> None:
    settings = ControllerSettings("http://127.0.0.1:1", write_pipeline(tmp_path / "p"), **changes)
    assert isinstance(build_controller(settings)[0].policy, FallbackPolicy) == watched


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"platform": "nomad"}, "platform is 'nomad'; it should be 'openfaas' or 'kubernetes'"),
        ({"lease": "x"}, "lease is 'x'"),
        ({"dry_run": True, "shadow": True}, "one of dry_run and shadow"),
        ({"fallback_windows": 3}, "slo_s is None"),
        ({"stalled_s": 5.0}, "stalled_s is 5.0; allowed is above 5.0"),
        ({"metrics_port": 70000}, "metrics_port is 70000"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        ControllerSettings("http://127.0.0.1:1", Path(), **changes)
