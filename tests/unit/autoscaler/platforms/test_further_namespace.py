"""A pipeline in a further namespace beside one of the same function names at home: whose numbers its controller reads,
whose replicas it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from autoscaler.build import build_controller
from autoscaler.cluster import ClusterSide
from autoscaler.errors import SettingsError
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.source import Monitor
from autoscaler.settings import ControllerSettings
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import NAMESPACE, put, spec
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration, topology
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.autoscaler.platforms.test_cluster_side import kubeconfig as kubeconfig
from tests.unit.autoscaler.platforms.test_stories import FUNCTIONS, TICK_S, Story
from tests.unit.autoscaler.platforms.test_stories_of_metrics import BUSY, Exporter, Prometheus
from tests.unit.autoscaler.servers import Reply, serve

TEAM = "team-a"


class Selecting(Prometheus):
    """Answers with what the query's matcher of function names selects; of home's functions it knows nothing."""

    def reply(self, method: str, path: str, body: bytes, authorization: str) -> Reply:
        status, reported = super().reply(method, path, body, authorization)
        document = json.loads(reported)
        matcher = re.search(r'function_name=~"([^"]*)"', parse_qs(urlsplit(path).query)["query"][0])
        rows: list[dict[str, Any]] = document["data"]["result"]
        if matcher is not None and rows and rows[0]["metric"]:  # the age of samples is of no function
            wanted = re.compile(matcher[1].replace("\\\\", "\\"))
            kept = [row for row in rows if wanted.fullmatch(row["metric"].get("function_name", ""))]
            document["data"]["result"] = kept
        return status, json.dumps(document).encode()


@pytest.fixture
def both(double: Running) -> None:
    double.do(lambda: double.cluster.add_namespace(TEAM, {"openfaas": "1"}))
    for function in FUNCTIONS:
        put(double, spec(function))
        put(double, spec(function, namespace=TEAM))


@pytest.mark.slow
@pytest.mark.parametrize(("reported", "ends_with"), [(TEAM, (3, 3)), (NAMESPACE, (1, 1))])
def test_a_controller_scales_its_namespace_by_the_numbers_of_its_own_functions(
    double: Running, platforms: Platforms, both: None, reported: str, ends_with: tuple[int, int]
) -> None:
    """Told the wrong name it finds no replica of its own ready, and holds."""
    server = Selecting(Exporter(double, TEAM), TICK_S)
    with serve(server.reply) as running:
        source = PrometheusSource(running.url, "m", namespace=reported)
        story = Story(double, platforms(namespace=TEAM), Monitor(topology(), source, reported), TEAM)
        story.simulate(6)
    assert server.exporter.calls == BUSY and story.seen[-1] == ends_with
    assert [double.deployment(name)["spec"]["replicas"] for name in FUNCTIONS] == [1, 1]


def test_one_setting_names_the_namespace_to_queries_and_cluster(
    double: Running, kubeconfig: Path, both: None, tmp_path: Path
) -> None:
    put(double, spec("m-segment-0", namespace=TEAM))
    asked: list[str] = []

    def reply(method: str, path: str, body: bytes, authorization: str) -> Reply:
        asked.append(parse_qs(urlsplit(path).query)["query"][0])
        return 200, b'{"status": "success", "data": {"resultType": "vector", "result": []}}'

    with serve(reply) as running:
        settings = ControllerSettings(
            "http://127.0.0.1:1",
            write_pipeline(tmp_path / "tiny"),
            prometheus_url=running.url,
            platform="kubernetes",
            kubeconfig=kubeconfig,
            namespace=TEAM,
        )
        side = ClusterSide(settings, "m")
        assert side.platform.configurations() == dict.fromkeys((*FUNCTIONS, "m-segment-0"), configuration())
        build_controller(settings, platform=side.platform)[0].tick(1000.0)
    of_functions = [query for query in asked if "function_name=~" in query]
    matchers = (r'"tiny(-.+)?[.]team\\-a"', r'"|.+[.](team\\-a)"')
    assert of_functions and all(any(one in query for one in matchers) for query in of_functions)


def test_home_may_have_another_name_in_the_cluster(double: Running, kubeconfig: Path, both: None) -> None:
    put(double, spec("m-segment-0", namespace=TEAM))
    settings = ControllerSettings(
        "http://127.0.0.1:1", Path(), platform="kubernetes", kubeconfig=kubeconfig, kubernetes_namespace=TEAM
    )
    assert settings.namespace == NAMESPACE
    assert "m-segment-0" in ClusterSide(settings, "m").platform.configurations()


def test_a_further_namespace_has_no_other_name_in_the_cluster() -> None:
    with pytest.raises(SettingsError, match="kubernetes_namespace is 'fns'; allowed is none next to namespace team-a"):
        ControllerSettings("http://127.0.0.1:1", Path(), namespace=TEAM, kubernetes_namespace="fns")


@pytest.mark.parametrize("name", ["", "Team", 'a"}', "a.b", "-a", "a" * 64])
def test_what_is_no_name_of_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="a name of Kubernetes"):
        ControllerSettings("http://127.0.0.1:1", Path(), namespace=name)
