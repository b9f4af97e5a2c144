"""The manifest refuses everything that is not a pipeline, with a sentence, and never anything that is."""

from __future__ import annotations

import copy
import hashlib
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_tensors

from moe.errors import ManifestError
from moe.manifest import from_json, load, save, to_json
from moe.names import MANIFEST_FILE
from tests.parameters import examples
from tests.unit.moe.conftest import Case

RELAXED = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def text(bert_case: Case) -> str:
    return (bert_case.folder / MANIFEST_FILE).read_text()


def test_manifest_survives_saving_and_loading(bert_case: Case, tmp_path: Path) -> None:
    manifest = load(bert_case.folder)
    save(manifest, tmp_path)
    again = load(tmp_path, verify=False)
    assert to_json(again) == to_json(manifest)
    assert again.nodes == manifest.nodes and again.router == manifest.router


def test_topology_helpers_agree_with_the_numbering(bert_case: Case) -> None:
    manifest = load(bert_case.folder)
    assert manifest.layers == 3
    assert [node.id for node in manifest.segments] == [f"segment-{i}" for i in range(4)]
    assert [node.id for node in manifest.experts(2)] == [f"expert-2-{j}" for j in range(4)]
    assert manifest.function_name("ingress") == "tiny"
    assert manifest.function_name("expert-1-3") == "tiny-expert-1-3"
    with pytest.raises(KeyError, match="segment-9"):
        manifest.node("segment-9")
    with pytest.raises(IndexError):
        manifest.experts(3)


class WatchedText(str):
    """A text that can be seen to go."""


def test_no_text_is_kept_once_it_is_checked(text: str) -> None:
    watched = WatchedText(text)
    gone = weakref.ref(watched)
    from_json(watched)
    del watched
    assert gone() is None


@RELAXED
@given(data=st.data())
def test_truncated_text_is_refused(text: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(ManifestError, match=r"pipeline\.json: "):
        from_json(text[:end])


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, child in children for found in paths_of(child, (*path, key)))]


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.copy(document)
    copied[path[0]] = replaced(document[path[0]], path[1:], value)
    return copied


WRONG = st.sampled_from([None, True, -1, 1.5, "x y", [], {}, [1], {"a": 1}, 2**80, "../up", "\u0000"])


@RELAXED
@given(data=st.data())
def test_wrong_values_are_refused_or_still_a_consistent_pipeline(text: str, data: st.DataObject) -> None:
    document = json.loads(text)
    path = data.draw(st.sampled_from(paths_of(document)[1:]))
    changed = json.dumps(replaced(document, path, data.draw(WRONG)))
    try:
        manifest = from_json(changed)
    except ManifestError as error:
        assert str(error).startswith("pipeline.json: ") and str(error).endswith(".")
    else:
        assert to_json(from_json(to_json(manifest))) == to_json(manifest)


@RELAXED
@given(data=st.data())
def test_unknown_keys_are_refused_wherever_they_stand(text: str, data: st.DataObject) -> None:
    document = json.loads(text)
    objects = [p for p in paths_of(document) if isinstance(at(document, p), dict) and p != ("files",)]
    path = data.draw(st.sampled_from(objects))
    changed = replaced(document, path, {**at(document, path), "surprise": 1})
    with pytest.raises(ManifestError, match="surprise"):
        from_json(json.dumps(changed))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@RELAXED
@given(data=st.data())
def test_missing_keys_are_refused(text: str, data: st.DataObject) -> None:
    document = json.loads(text)
    keys = [p for p in paths_of(document)[1:] if isinstance(at(document, p[:-1]), dict) and p[0] != "files"]
    path = data.draw(st.sampled_from(keys).filter(lambda p: p[-2:-1] != ("special",)))
    parent = dict(at(document, path[:-1]))
    del parent[path[-1]]
    with pytest.raises(ManifestError, match=str(path[-1])):
        from_json(json.dumps(replaced(document, path[:-1], parent)))


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return apply


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(edit(lambda d: d["edges"].append(["segment-3", "segment-0"])), "is too much", id="cycle"),
        pytest.param(edit(lambda d: d["edges"].pop()), "is missing", id="edge-missing"),
        pytest.param(edit(lambda d: d["edges"].append(d["edges"][0])), "stands twice", id="edge-twice"),
        pytest.param(edit(lambda d: d["edges"].append(["segment-0", "segment-1"])), "is too much", id="edge-too-much"),
        pytest.param(edit(lambda d: d["edges"].append(["segment-0", "expert-9-9"])), "not a node", id="edge-unknown"),
        pytest.param(edit(lambda d: d["nodes"].append(d["nodes"][0])), "stands twice", id="node-twice"),
        pytest.param(edit(lambda d: d["nodes"][0].update(id="segment-7")), "its numbers say", id="id-lies"),
        pytest.param(edit(lambda d: d["nodes"][0].update(expert=0)), "null for segments", id="segment-expert"),
        pytest.param(edit(lambda d: d["nodes"].pop(0)), "without gaps", id="segment-gap"),
        pytest.param(edit(lambda d: d["nodes"].pop(4)), "without gaps", id="expert-gap"),
        pytest.param(edit(lambda d: d["router"].update(top_k=5)), "router.top_k", id="top-k"),
        pytest.param(edit(lambda d: d["files"].pop("weights/segment-0.safetensors")), "files", id="file"),
        pytest.param(edit(lambda d: d.update(task="causal-lm")), "task", id="task-of-another-family"),
        pytest.param(edit(lambda d: d["architecture"].update(layers=2)), "architecture", id="layers-lie"),
        pytest.param(lambda t: t.replace('"version": 1', '"version": 3'), "version", id="version"),
        pytest.param(lambda t: t.replace('"version": 1', '"version": NaN'), "NaN", id="nan"),
        pytest.param(lambda t: t.replace('"version": 1', '"name": "x", "version": 1'), "twice", id="key-twice"),
        pytest.param(lambda t: "[" * 100_000, "JSON|nested", id="deep"),
    ],
)
def test_inconsistent_manifests_are_refused(text: str, change: Callable[[str], str], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        from_json(change(text))


@pytest.fixture
def folder(bert_case: Case, tmp_path: Path) -> Path:
    """A copy whose files may be damaged."""
    for path in bert_case.folder.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(bert_case.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def test_changed_bytes_are_noticed(folder: Path) -> None:
    path = folder / "weights" / "expert-1-2.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    load(folder, verify=False)
    with pytest.raises(ManifestError, match=r"expert-1-2\.safetensors: sha256"):
        load(folder)


def test_truncated_and_missing_files_are_noticed(folder: Path) -> None:
    path = folder / "weights" / "segment-1.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ManifestError, match=r"segment-1\.safetensors: holds"):
        load(folder)
    path.unlink()
    with pytest.raises(ManifestError, match="not readable"):
        load(folder)


def rewritten(folder: Path, name: str, data: bytes) -> None:
    """A file of the pipeline with other bytes, which the manifest states."""
    (folder / name).write_bytes(data)
    document = json.loads((folder / MANIFEST_FILE).read_text())
    document["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / MANIFEST_FILE).write_text(json.dumps(document))


def test_weights_that_are_broken_although_their_sha256_is_right_are_noticed(folder: Path) -> None:
    name = "weights/expert-1-2.safetensors"
    rewritten(folder, name, b"\xff" * 100)
    load(folder, verify=False)
    with pytest.raises(ManifestError, match=r"expert-1-2\.safetensors: is not a readable safetensors file"):
        load(folder)
    rewritten(folder, name, save_tensors({"up": np.zeros((3, 4), np.float32), "kept": np.zeros(5, np.int8)}))
    with pytest.raises(ManifestError, match=r"holds 53 bytes of expert-1-2, the manifest's parameter_bytes is"):
        load(folder)


def test_folder_without_manifest_is_not_a_pipeline(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is this a pipeline folder"):
        load(tmp_path)
    (tmp_path / MANIFEST_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match="UTF-8"):
        load(tmp_path)
