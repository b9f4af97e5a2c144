"""``smoe pipeline stack`` of every preset, both forms, whole: what `kubectl` and `faas-cli` would be given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.specs import parse_deployment
from moe.checkpoints.source import SeededSource
from moe.manifest import Manifest
from moe.preset import PRESETS, preset_source
from moe.split import split
from smoe.commands import service
from smoe.deployment import DeploymentSettings, function_deployments

pytestmark = pytest.mark.slow

WIDTH = 64
"""Pipelines of seeded weights: names, numbers of functions and shapes of the manifests are those of the full width."""
INSTALLED = {
    "minilm": {"model_type": "bert", "hidden_size": WIDTH, "num_attention_heads": 1, "num_hidden_layers": 6},
    "smollm2": {
        "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": 1, "num_hidden_layers": 30,
        "intermediate_size": WIDTH, "vocab_size": 512,
    },
}  # fmt: skip
"""Narrow models with the layers of those that come with their weights."""
FUNCTION_KEYS = {
    "lang", "handler", "image", "fprocess", "environment", "environment_file", "secrets", "skip_build", "constraints",
    "labels", "annotations", "limits", "requests", "readonly_root_filesystem", "build_options", "namespace",
}  # fmt: skip
"""What faas-cli reads of a function (openfaas/faas-cli:stack/schema.go); anything else it would leave out."""
TEXTS = ("environment", "labels", "annotations", "limits", "requests")
"""Maps of texts to texts there: a number or a truth value is an error."""


@pytest.fixture(scope="module", params=sorted(PRESETS))
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A preset's folder, of narrow seeded weights."""
    preset = PRESETS[request.param]
    folder = tmp_path_factory.mktemp("presets") / preset.name
    config = INSTALLED.get(preset.name)
    source = preset_source(preset, None, WIDTH, 0) if config is None else SeededSource(config, 0)
    return folder, split(source, folder, preset.name, preset.experts, preset.top_k, layers=preset.layers)


def stacked(pipeline: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(service, "ensure_pipeline", lambda name, pipelines: pipeline)
    done = CliRunner().invoke(service.stack, [pipeline[1].name, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_manifests_for_kubectl_are_as_kubernetes_schemas_say(
    pipeline: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = pipeline[1]
    found: list[dict[str, Any]] = list(_read(stacked(pipeline, monkeypatch, "--target=kubernetes")))
    kinds = {"Deployment": {}, "Service": {}}
    for document in found:
        kinds[document["kind"]][document["metadata"]["name"]] = document
    names = [manifest.function_name(node) for node in ("ingress", *(node.id for node in manifest.nodes))]
    assert list(kinds["Deployment"]) == list(kinds["Service"]) == names
    seen: set[str] = set()
    for document in found:  # functions of one shape differ in names and numbers: one of each shape is enough
        shape = _shape(document)
        if shape not in seen:
            kubernetes_validate.validate(document, "1.36", strict=True)
            seen.add(shape)
    for deployment in kinds["Deployment"].values():
        spec = objects.spec_of(deployment)
        assert spec is not None
        objects.check(spec)
        assert objects.deployment(spec, KubernetesSettings(), frozenset())["spec"] == {
            key: value for key, value in deployment["spec"].items() if key != "replicas"
        }


@pytest.mark.parametrize("limit", [0, 15])
def test_stack_files_for_faas_cli_hold_what_it_reads_and_deploy_the_same(
    pipeline: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    (found,) = _read(stacked(pipeline, monkeypatch, f"--max-functions={limit}"))
    assert found.keys() == {"version", "provider", "functions"} and found["provider"]["name"] == "openfaas"
    functions = found["functions"]
    assert len(functions) <= limit or not limit
    for name, function in functions.items():
        assert function.keys() <= FUNCTION_KEYS and function["skip_build"] is True and function["image"]
        for key in TEXTS:
            assert all(isinstance(part, str) for pair in function[key].items() for part in pair), (name, key)
        assert function["limits"].keys() == function["requests"].keys() == {"memory", "cpu"}
        parse_deployment({"service": name, "image": function["image"], "envVars": function["environment"]})
    if not limit:
        settings = DeploymentSettings(watchdog=True)
        wanted = {one["service"]: one["envVars"] for one in function_deployments(pipeline[1], settings)}
        assert {name: function["environment"] for name, function in functions.items()} == wanted


def _read(text: str) -> Iterator[Any]:
    """YAML by libyaml: a hundred functions take the Python one seconds."""
    return yaml.load_all(text, yaml.CSafeLoader)


def _shape(document: Any) -> str:
    """Keys, types and places of a document, without its values."""
    if isinstance(document, dict):
        return "{" + ",".join(f"{key}:{_shape(value)}" for key, value in sorted(document.items())) + "}"
    if isinstance(document, list):
        return "[" + ",".join(map(_shape, document)) + "]"
    return type(document).__name__
