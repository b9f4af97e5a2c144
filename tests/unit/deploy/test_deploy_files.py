"""The files of ``deploy/`` against the code: flags exist, names meet, images hold what is imported."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from autoscaler.build import build_controller
from autoscaler.commands import autoscale
from autoscaler.settings import AUTO, ControllerSettings
from gateway.main import main as gateway
from tests.doubles.fake_platform import FakePlatform
from tests.doubles.kubernetes.admission import check_deployment
from tests.unit.autoscaler.manifests import write_pipeline

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUSTOMIZATION = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
RESOURCES = KUSTOMIZATION["resources"]
CLUSTER_WIDE = ("Namespace", "ClusterRole", "ClusterRoleBinding")


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


@pytest.mark.parametrize("name", ["gateway", "controller", "prometheus"])
def test_every_program_is_asked_whether_it_is_ready_and_alive_on_a_port_that_it_has(name: str) -> None:
    spec = container(name)
    probes = {key: value["httpGet"] for key, value in spec.items() if key.endswith("Probe")}
    starts_slowly = {"startupProbe"} if name != "prometheus" else set()
    assert {"readinessProbe", "livenessProbe"} | starts_slowly <= set(probes)
    assert {probe["port"] for probe in probes.values()} <= {port["name"] for port in spec["ports"]}


def test_the_controller_is_asked_for_its_health_on_its_metrics_port() -> None:
    """Which path answers so: tests/unit/autoscaler/test_view.py."""
    spec = container("controller")
    probes = [value["httpGet"] for key, value in spec.items() if key.endswith("Probe")]
    assert probes == [{"path": "/healthz", "port": "metrics"}] * 3
    (port,) = [one["containerPort"] for one in spec["ports"] if one["name"] == "metrics"]
    assert f"--metrics-port={port}" in spec["args"]


def generated() -> set[str]:
    """Config maps that the kustomization makes of files, all of which are there."""
    makers = KUSTOMIZATION["configMapGenerator"]
    assert all((DEPLOY / file).is_file() for maker in makers for file in maker["files"])
    return {maker["name"] for maker in makers}


def test_config_maps_that_pods_mount_are_made_here_or_by_a_command_that_their_file_names() -> None:
    volumes = [one for deployment in of_kind("Deployment") for one in deployment["spec"]["template"]["spec"]["volumes"]]
    mounted = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
    by_hand = re.findall(r"create configmap (\S+)", (DEPLOY / "kubernetes" / "controller.yaml").read_text())
    assert mounted == {"smoe-prometheus", *by_hand} and mounted - generated() == set(by_hand)


def test_the_controller_reads_its_pipeline_where_it_is_mounted() -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container("controller")["volumeMounts"]}
    assert f"--manifest={mounts['pipeline']}" in container("controller")["args"]


def test_components_add_flags_that_exist_to_what_is_there() -> None:
    programs = {"gateway": gateway, "smoe-controller": autoscale}
    patches = [
        patch
        for path in (DEPLOY / "components").glob("*/kustomization.yaml")
        for patch in yaml.safe_load(path.read_text())["patches"]
    ]
    assert patches
    for patch in patches:
        flags = {flag for option in programs[patch["target"]["name"]].params for flag in option.opts}
        for step in yaml.safe_load(patch["patch"]):
            assert (step["op"], step["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
            assert step["value"].partition("=")[0] in flags


def test_a_further_namespace_is_annotated_bound_and_fenced_as_the_first_is() -> None:
    there = list(yaml.safe_load_all((DEPLOY / "function-namespace.yaml").read_text()))
    namespace = there[0]
    (home,) = [one for one in of_kind("Namespace") if one["metadata"]["name"] == "openfaas-fn"]
    fences = [one for one in of_kind("NetworkPolicy") if one["metadata"]["namespace"] == "openfaas-fn"]
    assert namespace["metadata"]["annotations"] == home["metadata"]["annotations"] == {"openfaas": "1"}
    assert {one["metadata"]["namespace"] for one in there[1:]} == {namespace["metadata"]["name"]}
    policies = [one for one in there if one["kind"] == "NetworkPolicy"]
    assert fences and [(one["metadata"]["name"], one["spec"]) for one in policies] == [
        (one["metadata"]["name"], one["spec"]) for one in fences
    ]


def test_prometheus_answers_its_own_namespace_and_those_labelled_as_on_the_page() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (label,) = re.findall(r"kubectl label namespace \S+ ([^`\s]+)`", page)
    (policy,) = [one for one in of_kind("NetworkPolicy") if one["metadata"]["name"] == "prometheus"]
    (rule,) = policy["spec"]["ingress"]
    key, _, value = label.partition("=")
    assert rule["from"] == [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {key: value}}}]
    (port,) = [one["containerPort"] for one in container("prometheus")["ports"]]
    assert rule["ports"] == [{"port": port, "protocol": "TCP"}]


def test_functions_of_a_further_namespace_reach_stores_by_a_file_that_holds_nothing_else() -> None:
    text = (DEPLOY / "components" / "weights-cache" / "stores.yaml").read_text()
    (command,) = re.findall(r"^#   sed 's/(.+)/(.+)/' (\S+) \| kubectl apply -f -$", text, re.MULTILINE)
    (home,), (there,) = (list(yaml.safe_load_all(one)) for one in (text, re.sub(command[0], command[1], text)))
    assert (home["metadata"]["namespace"], there["metadata"]["namespace"]) == ("openfaas-fn", "team-a")
    assert command[2] == "deploy/components/weights-cache/stores.yaml"
    assert (there["kind"], there["spec"]) == ("NetworkPolicy", home["spec"])
    (rule,) = there["spec"]["egress"]
    assert rule["ports"] == [{"port": 443, "protocol": "TCP"}]


@pytest.mark.slow
def test_accounts_services_and_budgets_name_what_there_is() -> None:
    accounts = {one["metadata"]["name"] for one in of_kind("ServiceAccount")}
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind("Deployment")]
    for deployment in of_kind("Deployment"):
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] in accounts
    for selector in (
        *(one["spec"]["selector"] for one in of_kind("Service")),
        *(
            one["spec"]["selector"]["matchLabels"]
            for one in of_kind("PodDisruptionBudget")
            if one["metadata"]["namespace"] == "openfaas"  # that of ingresses: test_manifests.py
        ),
    ):
        assert any(selector.items() <= one.items() for one in labels)
    for service in of_kind("Service"):
        ports = {port["name"] for port in container(service["spec"]["selector"]["app"].removeprefix("smoe-"))["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_everything_is_in_a_namespace_that_is_made() -> None:
    made = {one["metadata"]["name"] for one in of_kind("Namespace")}
    assert {one["metadata"].get("namespace") for one in documents() if one["kind"] not in CLUSTER_WIDE} == made


def requirements(file: str = "control-requirements.txt") -> list[str]:
    lines = (DEPLOY / file).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def packages(*files: str) -> list[str]:
    return [re.split(r"[>=<]", line)[0] for file in files for line in requirements(file)]


def test_versions_of_the_image_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["dependencies"], *project["optional-dependencies"]["nats"]}
    assert {*requirements(), *requirements("policy-requirements.txt")} <= known


ALONE = """
import importlib.abc, importlib.machinery, os, sys
rooms, packages, folder = (set(sys.argv[1].split()), set(sys.argv[2].split()), sys.argv[3])
class Image(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if "." in name or name in rooms | packages:
            return None
        found = importlib.machinery.PathFinder.find_spec(name)
        places = [] if found is None else [found.origin or "", *(found.submodule_search_locations or ())]
        if any("site-packages" in place or place.startswith(os.getcwd()) for place in places):
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
sys.meta_path.insert(0, Image())
from pathlib import Path
from autoscaler.build import build_controller
from autoscaler.settings import ControllerSettings
import evaluation.bound.last_window, rl.faasconf.policy, autoscaler.policy.janus, rl.staffing.fit, rl.staffing.policy
settings = ControllerSettings("http://127.0.0.1:1", Path(folder), policy="smoe", slo_s=0.1)
print(build_controller(settings)[0].policy.name)
# Of this program alone: ru_maxrss begins with what the process that started it had.
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(int(peak.split()[1]) // 1024)
"""


@pytest.mark.slow
def test_learnt_policies_and_rules_are_loaded_from_what_the_image_holds_within_the_pods_memory(tmp_path: Path) -> None:
    """With every module out of reach that is neither copied into the image nor among what its requirements bring."""
    from tests.unit.functions.test_container import CLOSURE

    names = packages("control-requirements.txt", "policy-requirements.txt")
    closure = subprocess.run(
        [sys.executable, "-c", CLOSURE, *names], capture_output=True, text=True, check=True, timeout=100
    )
    rooms = re.findall(r"^COPY (\w+) \./\w+$", (DEPLOY / "control.Dockerfile").read_text(), re.MULTILINE)
    arguments = [" ".join(rooms), closure.stdout, str(write_pipeline(tmp_path / "tiny"))]
    completed = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100
    )
    assert completed.stdout.startswith("smoe\n"), completed.stderr
    limit = container("controller")["resources"]["limits"]["memory"]
    assert int(completed.stdout.split()[1]) < 1024 * int(limit.removesuffix("Gi"))


@pytest.mark.slow
def test_gateway_and_controller_import_only_what_their_image_holds() -> None:
    names = packages("control-requirements.txt")
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
    # oauthlib, pyarrow, anyio and the Kubernetes client take these where they are
    taken = {"blinker", "cloudpickle", "kubernetes_validate", "importlib_resources", "packaging", "sniffio"}
    allowed = {*closure.stdout.split(), *taken}
    assert {name for name in imported.stdout.split() if name not in allowed and not name.startswith("__")} == set()


def test_the_controller_of_the_manifests_runs_auto_and_hpa_until_a_profile_is_named(tmp_path: Path) -> None:
    given = dict(argument.removeprefix("--").split("=", 1) for argument in container("controller")["args"])
    assert not {"policy", "policy-settings"} & set(given)
    settings = ControllerSettings(
        given["gateway"],
        write_pipeline(tmp_path / "tiny"),
        platform="kubernetes",
        slo_s=float(given["slo-ms"]) / 1000,
        prometheus_url=given["prometheus"],
    )
    assert settings.policy == AUTO
    controller, _ = build_controller(settings, FakePlatform({}))
    assert controller.policy.name == "hpa"
