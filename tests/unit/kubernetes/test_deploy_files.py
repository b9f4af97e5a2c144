"""The files of ``deploy/`` against the code: flags exist, names meet, images hold what is imported, rules parse."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from autoscaler.commands import autoscale
from autoscaler.platform.kubernetes.metrics import CALLS, CONDITIONS, LEADER
from gateway import metric_names
from gateway.main import main as gateway
from tests.doubles.kubernetes.admission import check_deployment

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RESOURCES = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]


def documents() -> list[dict[str, Any]]:
    return [one for path in RESOURCES for one in yaml.safe_load_all((DEPLOY / path).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in documents() if one["kind"] == kind]


def container(name: str) -> dict[str, Any]:
    (found,) = [
        one
        for deployment in of_kind("Deployment")
        for one in deployment["spec"]["template"]["spec"]["containers"]
        if one["name"] == name
    ]
    return dict(found)


@pytest.mark.parametrize(("name", "command"), [("gateway", gateway), ("controller", autoscale)])
def test_every_flag_in_the_manifests_is_one_of_the_program_s(name: str, command: click.Command) -> None:
    flags = {flag for option in command.params for flag in option.opts}
    used = {argument.partition("=")[0] for argument in container(name)["args"]}
    assert used <= flags


def test_deployments_are_such_as_the_api_server_takes() -> None:
    for deployment in of_kind("Deployment"):
        check_deployment(deployment, None)
        pod = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = [mount for one in pod["containers"] for mount in one["volumeMounts"]]
        assert {mount["name"] for mount in mounts} == volumes
        assert pod["securityContext"]["runAsNonRoot"]


def test_accounts_services_and_budgets_name_what_there_is() -> None:
    accounts = {one["metadata"]["name"] for one in of_kind("ServiceAccount")}
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind("Deployment")]
    for deployment in of_kind("Deployment"):
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] in accounts
    for selector in (
        *(one["spec"]["selector"] for one in of_kind("Service")),
        *(one["spec"]["selector"]["matchLabels"] for one in of_kind("PodDisruptionBudget")),
    ):
        assert any(selector.items() <= one.items() for one in labels)
    ports = {port["name"] for port in container("gateway")["ports"]}
    assert {port["targetPort"] for one in of_kind("Service") for port in one["spec"]["ports"]} == ports


def test_everything_is_in_a_namespace_that_is_made() -> None:
    made = {one["metadata"]["name"] for one in of_kind("Namespace")}
    assert {one["metadata"].get("namespace") for one in documents() if one["kind"] != "Namespace"} == made


def requirements() -> list[str]:
    lines = (DEPLOY / "control-requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_versions_of_the_image_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(requirements()) <= set(project)


def test_gateway_and_controller_import_only_what_their_image_holds() -> None:
    names = [re.split(r"[>=<]", line)[0] for line in requirements()]
    code = (
        "import sys; before = set(sys.modules); import gateway.main, gateway.backends.kubernetes.backend, "
        "autoscaler.commands, smoe.cli;"
        "print(*{n.split('.')[0] for n in set(sys.modules) - before if 'site-packages' in "
        "(getattr(sys.modules[n], '__file__', None) or '')})"
    )
    imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=100
    )
    from tests.unit.functions.test_container import CLOSURE

    closure = subprocess.run(
        [sys.executable, "-c", CLOSURE, *names], capture_output=True, text=True, check=True, timeout=100
    )
    allowed = {*closure.stdout.split(), "blinker", "cloudpickle"}  # oauthlib and pyarrow take these where they are
    assert {name for name in imported.stdout.split() if name not in allowed and not name.startswith("__")} == set()


def test_alerts_and_recording_rules_use_metrics_that_exist() -> None:
    known = {CALLS, CONDITIONS, LEADER} | {
        value for key, value in vars(metric_names).items() if key.isupper() and isinstance(value, str)
    }
    groups = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    used = {name for rule in rules for name in re.findall(r"\b(?:smoe|gateway)_\w+", rule["expr"])}
    assert used <= known
    assert {rule["record"] for rule in rules if "record" in rule} <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", str(DEPLOY / "prometheus-rules.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert checked.returncode == 0, checked.stderr
