"""The Helm chart: what Helm renders, against ``deploy/kustomization.yaml``, and which values it takes."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from autoscaler.commands import autoscale
from gateway.main import main as gateway

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
KUSTOMIZATION = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())

Key = tuple[str, str | None, str]
Object = dict[str, Any]

HELM = """
import helm_python, json, sys
chart, action, calls = json.load(sys.stdin)
with helm_python.Chart.load(chart) as loaded:
    if action == "lint":
        answers = [[one["severity"], one["error"]] for one in helm_python.lint(chart)["messages"]]
    elif action == "package":
        with helm_python.Chart.load(loaded.save(calls[0])) as packed:
            answers = [packed.render({}, name="smoe", namespace="openfaas")]
    elif action == "render":
        answers = [loaded.render(values, name="smoe", namespace=namespace) for values, namespace in calls]
    else:
        answers = []
        for values in calls:
            try:
                loaded.validate_schema(values)
                answers.append(None)
            except helm_python.HelmError as error:
                answers.append(str(error))
json.dump(answers, sys.stdout)
"""

with_helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None, reason="helm-python-sdk, which brings Helm, is not installed"
)


def helm(action: str, calls: list[Any]) -> list[Any]:
    """Helm's own library, in a process of its own: it brings Go's threads, which forks of other tests must not see."""
    done = subprocess.run(
        [sys.executable, "-c", HELM],
        input=json.dumps([str(CHART), action, calls]), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return list(json.loads(done.stdout))


def changed(*changes: tuple[str, Any]) -> Object:
    """Values that state only what differs from the defaults: ``("gateway.replicas", 3)``."""
    values: Object = {}
    for path, value in changes:
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return values


def merged(values: Object, defaults: Object = VALUES) -> Object:
    both = copy.deepcopy(defaults)
    for key, value in values.items():
        both[key] = merged(value, both[key]) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def key_of(one: Object) -> Key:
    return one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]


def objects_of(texts: list[str]) -> dict[Key, Object]:
    found = [one for text in texts for one in yaml.safe_load_all(text) if one is not None]
    assert len({key_of(one) for one in found}) == len(found), "an object comes twice"
    return {key_of(one): one for one in found}


def rendered(*calls: tuple[Object, str]) -> list[dict[Key, Object]]:
    return parsed(helm("render", list(calls)))


def parsed(answers: list[dict[str, str]]) -> list[dict[Key, Object]]:
    return [objects_of([text for path, text in one.items() if not path.endswith(".txt")]) for one in answers]


@cache
def by_default() -> dict[Key, Object]:
    return rendered(({}, "openfaas"))[0]


@cache
def of_kustomize() -> dict[Key, Object]:
    """What ``kubectl kustomize deploy`` prints, but for the hashes that it adds to the names of config maps."""
    objects = objects_of([(ROOT / "deploy" / path).read_text() for path in KUSTOMIZATION["resources"]])
    for made in KUSTOMIZATION["configMapGenerator"]:
        files = [ROOT / "deploy" / file for file in made["files"]]
        metadata = {"name": made["name"], "namespace": made["namespace"], **made.get("options", {})}
        data = {file.name: file.read_text() for file in files}
        one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        objects[key_of(one)] = one
    return objects


RELEASE: Key = ("Namespace", None, "openfaas")
"""Made by ``helm install --create-namespace``, as a release cannot hold the namespace that it is recorded in."""


def as_kustomize_has_it(one: Object) -> Object:
    """Without what the chart adds on purpose: functions outlive the release, and new settings restart Prometheus."""
    one = copy.deepcopy(one)
    if key_of(one) == ("Namespace", None, "openfaas-fn"):
        assert one["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    if key_of(one) == ("Deployment", "openfaas", "prometheus"):
        assert one["spec"]["template"]["metadata"].pop("annotations").keys() == {"checksum/config"}
    return one


@with_helm
def test_the_chart_holds_every_object_of_the_kustomization_and_no_other() -> None:
    assert by_default().keys() == of_kustomize().keys() - {RELEASE}


@with_helm
@pytest.mark.parametrize(
    "key", [key for key in of_kustomize() if key != RELEASE], ids=lambda key: "-".join(map(str, key))
)
def test_an_object_of_the_chart_is_that_of_the_kustomization(key: Key) -> None:
    wanted = of_kustomize()[key]
    found = as_kustomize_has_it(by_default()[key])
    if key[0] == "ConfigMap":  # block scalars end in one line break
        wanted, found = (
            {**one, "data": {name: text.rstrip() for name, text in one["data"].items()}} for one in (wanted, found)
        )
    assert found == wanted


@with_helm
def test_in_another_namespace_nothing_is_left_of_the_usual_one() -> None:
    (elsewhere,) = rendered(({}, "elsewhere-7"))
    text = json.dumps(list(elsewhere.values()))
    assert re.findall(r"\bopenfaas\b(?!-fn).{5}", text) == ['openfaas": "1']  # the mark of function namespaces
    usual = json.loads(text.replace("elsewhere-7", "openfaas"))
    assert [as_kustomize_has_it(one) for one in usual] == [as_kustomize_has_it(one) for one in by_default().values()]


OTHERS: list[tuple[str, Any]] = [
    ("image.repository", "registry.local/control"), ("image.tag", "9.9.9"), ("image.pullPolicy", "Always"),
    ("imagePullSecrets", ["registry"]),
    ("credentials.generate", True), ("credentials.secret", "mine"), ("credentials.feedSecret", "my-feed"),
    ("functionNamespace.create", False),
    ("gateway.replicas", 3), ("gateway.extraArgs", ["--nats=nats://nats.openfaas:4222", "--all-namespaces"]),
    ("gateway.service.type", "LoadBalancer"), ("gateway.resources", {"limits": {"cpu": 0.5, "memory": "2Gi"}}),
    ("gateway.nodeSelector", {"disk": "ssd"}), ("gateway.tolerations", [{"key": "a", "operator": "Exists"}]),
    ("controller.enabled", False), ("controller.replicas", 1), ("controller.pipeline", "switch"),
    ("controller.manifest", '{"name": "m"}'), ("controller.pipelinesClaim", "models"),
    ("controller.interval", "500ms"), ("controller.sloMs", 250.5),
    ("controller.extraArgs", ["--dry-run"]), ("controller.resources", {"limits": {"memory": "2Gi"}}),
    ("controller.nodeSelector", {"zone": "1"}),
    ("controller.tolerations", [{"key": "b", "value": "true", "effect": "NoSchedule"}]),
    ("prometheus.image", "prom/prometheus:v3.6.0"), ("prometheus.retention", "2d"), ("prometheus.claim", "data"),
    ("prometheus.retentionSize", "90GB"), ("prometheus.verifyKubelets", False),
    ("prometheus.sizeLimit", "1Gi"), ("prometheus.resources", {"requests": {"memory": "512Mi"}}),
    ("prometheus.nodeSelector", {"zone": "2"}), ("prometheus.tolerations", [{"operator": "Exists"}]),
    ("prometheusRule.enabled", True), ("dashboard.enabled", False), ("dashboard.labels", {"dashboards": "yes"}),
    ("networkPolicies", False),
]  # fmt: skip
"""Every value once with something other than its default; those that need another value beside it are below."""
TOGETHER: list[tuple[str, Any]] = [
    ("prometheus.enabled", False), ("prometheus.url", "http://prom.monitoring:9090"),
    ("prometheus.namespace", "monitoring"),
    ("prometheusRule.enabled", True), ("prometheusRule.labels", {"release": "kube-prometheus"}),
]  # fmt: skip
ELSEWHERE = changed(*TOGETHER)


def leaves(values: Object, prefix: str = "") -> set[str]:
    return {
        path
        for key, value in values.items()
        for path in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}"})
    }


def test_every_value_is_tried() -> None:
    tried = {path for path, _ in OTHERS + TOGETHER}
    assert {
        path for path in leaves(VALUES) if not any(path == one or path.startswith(f"{one}.") for one in tried)
    } == set()


@with_helm
@pytest.mark.slow
def test_every_value_changes_what_is_rendered_and_what_comes_out_is_valid() -> None:
    one_of_two = ("enabled", "manifest")
    every = merged(changed(*((path, value) for path, value in OTHERS if not path.endswith(one_of_two))))
    *alone, _, _ = answers = rendered(
        *((changed(one), "openfaas") for one in OTHERS), (ELSEWHERE, "openfaas"), (every, "x")
    )
    assert [path for (path, _), objects in zip(OTHERS, alone, strict=True) if objects == by_default()] == []
    distinct = {(one["kind"], json.dumps(one)) for objects in answers for one in objects.values()}
    for kind, text in distinct:
        if kind != "PrometheusRule":  # of Prometheus' operator, whose schema Kubernetes does not have
            kubernetes_validate.validate(json.loads(text), "1.36", strict=True)


@with_helm
def test_kubelets_certificates_are_verified_unless_the_values_say_otherwise() -> None:
    (unverified,) = rendered((changed(("prometheus.verifyKubelets", False)), "openfaas"))
    settings = [
        yaml.safe_load(one["ConfigMap", "openfaas", "smoe-prometheus"]["data"]["prometheus.yml"])
        for one in (by_default(), unverified)
    ]
    asked = [
        [one["tls_config"]["insecure_skip_verify"] for one in of["scrape_configs"] if "tls_config" in one]
        for of in settings
    ]
    assert asked == [[False], [True]]


@with_helm
def test_a_prometheus_elsewhere_is_asked_and_let_in_and_has_the_rules_as_an_object() -> None:
    (objects,) = rendered((ELSEWHERE, "openfaas"))
    assert not [key for key in objects if "prometheus" in key[2]]
    (container,) = objects["Deployment", "openfaas", "smoe-controller"]["spec"]["template"]["spec"]["containers"]
    assert "--prometheus=http://prom.monitoring:9090" in container["args"]
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    policies = {key[2]: one["spec"]["ingress"] for key, one in objects.items() if key[0] == "NetworkPolicy"}
    assert policies.keys() == {"functions", "pipelines", "scrapes", "gateway", "smoe-controller"}
    for name in ("scrapes", "gateway", "smoe-controller"):
        assert any(peer in rule.get("from", []) for rule in policies[name]), name
    assert {"to": [peer]} in objects["NetworkPolicy", "openfaas", "smoe-controller"]["spec"]["egress"]
    rule = objects["PrometheusRule", "openfaas", "smoe"]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert rule["metadata"]["labels"] == {"release": "kube-prometheus"}


@with_helm
def test_generated_credentials_share_the_feeds_token_and_stay() -> None:
    (objects,) = rendered((changed(("credentials.generate", True)), "openfaas"))
    ours = objects["Secret", "openfaas", "smoe-credentials"]
    feed = objects["Secret", "openfaas-fn", "smoe-feed"]
    assert ours["data"].keys() == {"basic-auth-user", "basic-auth-password", "feed-token"}
    assert feed["data"] == {"feed-token": ours["data"]["feed-token"]}
    assert ours["data"]["feed-token"] != ours["data"]["basic-auth-password"]
    assert {one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in (ours, feed)} == {"keep"}


@with_helm
def test_one_command_brings_the_controller_its_pipeline() -> None:
    text = '{\n  "name": "m: # {{ 1 }}"\n}\n'
    given, claimed = rendered(
        *((changed(("controller.pipeline", "m"), one), "openfaas")
          for one in (("controller.manifest", text), ("controller.pipelinesClaim", "models")))
    )  # fmt: skip
    assert given["ConfigMap", "openfaas", "smoe-pipeline"]["data"] == {"pipeline.json": text}
    for objects, folder in ((given, "/var/smoe/pipelines/m"), (claimed, "/var/smoe/pipelines")):
        pod = objects["Deployment", "openfaas", "smoe-controller"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert "--manifest=/var/smoe/pipelines/m" in container["args"]
        assert [one["mountPath"] for one in container["volumeMounts"] if "pipelines" in one["mountPath"]] == [folder]
    assert [one for one in claimed if one[2] == "smoe-pipeline"] == []


@with_helm
def test_who_brings_no_pipeline_is_shown_the_command_that_does() -> None:
    values = [{}, changed(("controller.manifest", "{}")), changed(("controller.enabled", False))]
    notes = [
        text for one in helm("render", [(one, "ns") for one in values]) for path, text in one.items() if "NOTES" in path
    ]
    command = "kubectl -n ns create configmap smoe-pipeline --from-file=.smoe/pipelines/minilm/pipeline.json"
    assert [command in text for text in notes] == [True, False, False]


@with_helm
def test_a_package_holds_the_files_that_the_folder_links_to(tmp_path: Path) -> None:
    assert parsed(helm("package", [str(tmp_path)])) == [by_default()]


@with_helm
def test_helm_finds_nothing_to_warn_of() -> None:
    information = 1
    assert [text for severity, text in helm("lint", []) if severity > information] == []


def valid(values: Object) -> bool:
    return bool(jsonschema.Draft7Validator(SCHEMA).is_valid(merged(values)))


def test_the_defaults_and_every_other_value_are_valid() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert valid({}) and valid(ELSEWHERE)
    assert [path for path, value in OTHERS if not valid(changed((path, value)))] == []


BAD: list[Object] = [
    changed(one)
    for one in (
        ("gatway.replicas", 2), ("gateway.replica", 2), ("gateway.replicas", 0), ("gateway.replicas", "two"),
        ("gateway.replicas", 2.5), ("gateway.extraArgs", "--nats=x"), ("gateway.extraArgs", ["nats"]),
        ("gateway.service.type", "ExternalName"), ("gateway.resources", {"limits": {"memory": "1 GB"}}),
        ("gateway.resources", {"limit": {}}), ("gateway.resources", {"limits": {"cpu": -1}}),
        ("gateway.tolerations", [{"effect": "Never"}]), ("gateway.nodeSelector", {"a": 1}),
        ("image.tag", "a b"), ("image.tag", 1.0), ("image.pullPolicy", "Sometimes"), ("image.repository", ""),
        ("credentials.secret", "Mine"), ("credentials.generate", "yes"), ("controller.pipeline", "../secrets"),
        ("controller.pipeline", ""), ("controller.manifest", "pipeline.json"), ("controller.pipelinesClaim", "a_b"),
        ("controller.interval", "5"), ("controller.interval", 5),
        ("controller.sloMs", 0), ("prometheus.enabled", False), ("prometheus.url", "ftp://a"),
        ("prometheus.retention", "long"), ("prometheus.claim", "a_b"), ("prometheus.retentionSize", "16Gi"),
        ("prometheus.url", "http://a:1"), ("prometheus.namespace", "monitoring"), ("networkPolicies", None),
        ("dashboard.labels", ["a"]),
    )
]  # fmt: skip
BAD += [changed(("prometheus.enabled", False), ("prometheus.url", "http://a:1"))]  # policies would keep it out
BAD += [changed(("controller.manifest", "{}"), ("controller.pipelinesClaim", "models"))]  # one would be ignored


@pytest.mark.parametrize("values", BAD, ids=json.dumps)
def test_a_bad_value_is_refused(values: Object) -> None:
    assert not valid(values)


@pytest.mark.slow
@with_helm
def test_helm_refuses_the_same_values() -> None:
    answers = helm("validate", [merged(values) for values in BAD])
    assert [values for values, answer in zip(BAD, answers, strict=True) if answer is None] == []
    assert helm("validate", [VALUES, merged(ELSEWHERE)]) == [None, None]


def test_flags_in_comments_of_the_values_are_those_of_the_programs() -> None:
    lines = [line.split() for line in (CHART / "values.yaml").read_text().splitlines() if "Further flags" in line]
    for words, command in zip(lines, (gateway, autoscale), strict=True):
        named = {word.strip(".,").partition("=")[0] for word in words if word.startswith("--")}
        assert named and named <= {flag for option in command.params for flag in option.opts}


def test_the_page_names_every_section_of_the_values_and_no_other() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text().partition("\n## Helm\n")[2].partition("\n#")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert {name.strip(" `") for row in rows for name in row.split(",")} == set(VALUES)


def test_scripts_take_the_version_of_the_images_from_the_project() -> None:
    for name in ("deploy/image.sh", "tests/contract/gateway/conformance/image.sh"):
        text = (ROOT / name).read_text()
        assert not re.search(r"smoe/\S+:\d", text) and "pyproject.toml" in text


def test_versions_of_chart_and_project_are_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version"))
    assert f'version = "{chart["version"]}"' == project and chart["version"] == chart["appVersion"]
