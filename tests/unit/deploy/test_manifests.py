"""Manifests against the published schemas of Kubernetes: ``deploy/``, and what ``smoe pipeline stack`` prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from autoscaler.log_bound import LOOKS
from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.pod_spec import CACHE_FOLDER
from gateway.backends.kubernetes.settings import KubernetesSettings
from moe.manifest import load
from smoe.commands import service
from smoe.deployment import DeploymentSettings, function_deployments
from tests.doubles.kubernetes.fixtures import Backends, until_so
from tests.doubles.kubernetes.running import Running
from tests.parameters import some_fast
from tests.unit.autoscaler.manifests import write_pipeline

DEPLOY = Path(__file__).parents[3] / "deploy"
VERSIONS = ("1.30", "1.36")
"""The oldest that the gateway takes, and the one whose answers were recorded."""
FOREIGN = ("openfaas/gpu-profile.yaml",)
"""Objects of others' definitions, which Kubernetes has no schema of."""


def files() -> list[Path]:
    files = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("components/*/*.yaml")]
    files += DEPLOY.glob("gpu/mps-*.yaml")
    return [path for path in files if path.name != "kustomization.yaml"]


def objects_of(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one is not None]


@pytest.mark.parametrize("version", some_fast(VERSIONS[::-1], 1))
@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_manifest_is_as_kubernetes_schemas_say(path: Path, version: str) -> None:
    documents = objects_of(path.read_text())
    assert documents, "the file holds no object"
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_found() -> None:
    """So that the test above cannot pass for want of looking."""
    document = objects_of((DEPLOY / "kubernetes" / "gateway.yaml").read_text())[0]
    document["spec"]["template"]["spec"]["containers"][0]["arguments"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="arguments"):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("path", FOREIGN)
def test_objects_of_others_have_a_kind_and_a_name(path: str) -> None:
    for document in objects_of((DEPLOY / path).read_text()):
        assert document["apiVersion"] and document["kind"] and document["metadata"]["name"]


def test_the_controller_s_log_stays_below_its_volume_s_limit() -> None:
    spec = objects_of((DEPLOY / "kubernetes" / "controller.yaml").read_text())[0]["spec"]["template"]["spec"]
    (log_mb,) = (arg for arg in spec["containers"][0]["args"] if arg.startswith("--log-mb="))
    (limit,) = (one["emptyDir"]["sizeLimit"] for one in spec["volumes"] if one["name"] == "log")
    assert limit == "1Gi" and 0 < int(log_mb.partition("=")[2]) * (1 + 1 / LOOKS) < 1024 - 64


CHART_KEYS = {
    "": {
        "openfaasPro", "functionNamespace", "openfaasImagePullPolicy", "clusterRole", "createCRDs", "basic_auth",
        "rbac",
        "generateBasicAuth", "securityContext", "exposeServices", "serviceType", "async", "autoscaler", "dashboard",
        "oidcAuthPlugin", "functions", "gateway", "gatewayPro", "faasnetes", "operator", "queueWorker",
        "queueWorkerPro",
        "prometheus", "alertmanager", "nats", "ingress", "nodeSelector", "tolerations", "affinity",
    },
    "autoscaler": {"image", "replicas", "enabled", "resources", "disableHorizontalScaling"},
    "functions": {"imagePullPolicy", "httpProbe", "setNonRootUser", "readinessProbe", "livenessProbe"},
    "gateway": {
        "image", "readTimeout", "writeTimeout", "upstreamTimeout", "replicas", "scaleFromZero", "nodePort",
        "maxIdleConns",
        "maxIdleConnsPerHost", "directFunctions", "logsProviderURL", "probeFunctions", "resources",
    },
    "operator": {"image", "create", "logs", "resources"},
    "prometheus": {"image", "create", "retention", "resources", "annotations", "recordingRules"},
    "alertmanager": {"image", "create", "resources"},
}  # fmt: skip
"""Keys of OpenFaaS's chart 15.0.6 (openfaas/faas-netes:chart/openfaas/values.yaml) next to which ours may stand."""


def test_values_for_openfaas_s_chart_are_keys_that_it_reads() -> None:
    values = yaml.safe_load((DEPLOY / "openfaas" / "values.yaml").read_text())
    assert values.keys() <= CHART_KEYS[""]
    sections = {name: set(value) for name, value in values.items() if isinstance(value, dict)}
    assert sections and all(keys <= CHART_KEYS[name] for name, keys in sections.items())


def test_the_kustomization_names_every_component() -> None:
    """In comments, since each is a choice."""
    text = (DEPLOY / "kustomization.yaml").read_text()
    named = re.findall(r"^  # - components/(\S+)", text, re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (DEPLOY / "components").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_it_with_all_components_and_what_comes_out_is_valid(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy" / "kustomization.yaml"
    every = ", ".join(f"components/{path.name}" for path in sorted((DEPLOY / "components").iterdir()))
    text = file.read_text()
    assert "components: []" in text
    file.write_text(text.replace("components: []", f"components: [{every}]"))
    built = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "deploy")], capture_output=True, text=True, check=True, timeout=60
    )
    documents = objects_of(built.stdout)
    for document in documents:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    maps = {
        one["metadata"]["name"].rpartition("-")[0]: set(one["data"]) for one in documents if one["kind"] == "ConfigMap"
    }
    assert maps == {"smoe-prometheus": {"prometheus.yml", "rules.yaml"}, "smoe-dashboard": {"smoe.json"}}
    assert set(arguments_of("gateway", documents)) - set(arguments_of("gateway", plain())) == {
        "--all-namespaces",
        "--nats=nats://nats.openfaas:4222",
        "--weights-cache=/var/lib/smoe/weights",
        "--run-as-user=12000",
        "--gpu-memory-mb=23028",
    }
    assert set(arguments_of("gateway", plain())) < set(arguments_of("gateway", documents))
    added = set(arguments_of("smoe-controller", documents)) - set(arguments_of("smoe-controller", plain()))
    assert added == {"--gpu-memory-mb=23028"}
    made = {(one["kind"], one["metadata"]["name"]) for one in documents}
    assert {
        ("StatefulSet", "nats"),
        ("DaemonSet", "smoe-weights-cache"),
        ("ClusterRole", "smoe-gateway-namespaces"),
    } <= made


def plain() -> list[dict[str, Any]]:
    """Gateway and controller without any component."""
    names = ("gateway", "controller")
    return [one for name in names for one in objects_of((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())]


def arguments_of(name: str, documents: list[dict[str, Any]]) -> list[str]:
    """Arguments of the one container of a Deployment."""
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == ("Deployment", name)]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small pipeline's folder without weights, which are not read here."""
    folder = write_pipeline(tmp_path / "m")
    loaded = load(folder, verify=False)
    monkeypatch.setattr(service, "ensure_pipeline", lambda name, pipelines: (folder, loaded))
    return folder


def stacked(*arguments: str) -> str:
    done = CliRunner().invoke(service.stack, ["m", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("flag", "place", "known"),
    [
        ("--namespace=openfaas-fn", "openfaas-fn", "openfaas-fn"),
        ("--namespace=team-a", "team-a", "team-a"),
        ("--kubernetes-namespace=fns", "fns", "openfaas-fn"),
    ],
    ids=["home", "a further namespace", "home by another name"],
)
def test_a_pipeline_as_manifests_is_valid_and_what_the_gateway_would_have_written(
    pipeline: Path, flag: str, place: str, known: str
) -> None:
    weights = ("--weights-from=s3://bucket/p/", "--weights-cache=/var/lib/smoe")
    documents = objects_of(stacked("--target=kubernetes", flag, "--run-as-user=12000", *weights))
    manifest = load(pipeline, verify=False)
    for document in documents[:4]:  # ingress and a segment; the others differ in names and numbers
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    deployments = {one["metadata"]["name"]: one for one in documents if one["kind"] == "Deployment"}
    assert deployments.keys() == {one["metadata"]["name"] for one in documents if one["kind"] == "Service"}
    assert len(deployments) == len(manifest.nodes) + 1
    cluster = KubernetesSettings(namespace=place, weights_cache="/var/lib/smoe", run_as_user=12000)
    for deployment in deployments.values():
        spec = objects.spec_of(deployment, known)
        assert spec is not None and deployment["metadata"]["namespace"] == place
        written = objects.deployment(spec, cluster, frozenset())
        assert deployment == {**written, "spec": {**written["spec"], "replicas": 1}}
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        assert variables["smoe_pipeline"] == f"s3://bucket/p/{manifest.name}"
        assert variables["OPENFAAS_NAMESPACE"] == known
        assert f".{place}:8080" in variables.get("smoe_address_template", f".{place}:8080")
        assert variables["smoe_weights_cache"] == CACHE_FOLDER


def test_the_budget_for_disruptions_is_that_of_ingresses_alone(pipeline: Path) -> None:
    (budget,) = objects_of((DEPLOY / "kubernetes" / "disruptions.yaml").read_text())
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in objects_of(stacked("--target=kubernetes"))
        if one["kind"] == "Deployment"
    }
    manifest = load(pipeline, verify=False)
    assert [name for name, labels in pods.items() if wanted <= labels.items()] == [manifest.name]
    assert len(pods) > 1


def test_a_further_namespace_has_no_other_name_in_the_cluster(pipeline: Path) -> None:
    done = CliRunner().invoke(service.stack, ["m", "--target=kubernetes", "--namespace=a", "--kubernetes-namespace=b"])
    assert done.exit_code == 2 and "leave --namespace a out" in done.output


@pytest.mark.slow
async def test_an_ingress_of_manifests_asks_for_the_name_that_gateways_give_its_namespace(
    pipeline: Path, double: Running, backends: Backends
) -> None:
    """Two pipelines of one name, applied in two namespaces, under a gateway that serves both."""
    double.do(lambda: double.cluster.add_namespace("team-a", {"openfaas": "1"}))
    asked = {}
    for namespace in ("openfaas-fn", "team-a"):
        for document in objects_of(stacked("--target=kubernetes", f"--namespace={namespace}")):
            double.do(lambda one=document: double.store.create(one["kind"].lower() + "s", one, "kubectl"))
            if document["kind"] == "Deployment":
                (container,) = document["spec"]["template"]["spec"]["containers"]
                (name,) = [one["value"] for one in container["env"] if one["name"] == "OPENFAAS_NAMESPACE"]
                asked[namespace, document["metadata"]["name"]] = f"{container['name']}.{name}"
    backend = await backends(all_namespaces=True)
    await until_so(lambda: len(backend.list()) == len(asked))
    assert {state.spec.key for state in backend.list()} == set(asked.values()) and len(set(asked.values())) == len(
        asked
    )


def test_the_stack_file_for_faas_cli_is_what_it_was(pipeline: Path) -> None:
    document = yaml.safe_load(stacked())
    wanted = function_deployments(load(pipeline, verify=False), DeploymentSettings())
    assert list(document["functions"]) == [one["service"] for one in wanted]


def test_a_feed_without_its_token_is_refused(pipeline: Path) -> None:
    assert (
        "go together" in CliRunner().invoke(service.stack, ["m", "--target=kubernetes", "--feed-url=http://g"]).output
    )
