"""Node programs: mapped weights, refused inputs, coalesced calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from moe.errors import ManifestError
from moe.manifest import load
from moe.reference import WholeModel, pack
from moe.runtime import NodeProgram, ProgramInputError, load_node
from moe.split import split
from tests.parameters import examples, some_fast
from tests.unit.moe import tiny
from tests.unit.moe.conftest import Case
from tests.unit.moe.test_manifest import folder  # noqa: F401

Call = dict[str, Tensor]


def program(case: Case, node_id: str) -> NodeProgram:
    return load_node(case.folder, load(case.folder, verify=False), node_id)


def mappings_of(path: Path) -> list[tuple[int, int]]:
    """Address ranges of this process that are mappings of ``path``."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    return [(int(start, 16), int(end, 16)) for start, end in ranges]


@pytest.mark.parametrize("node_id", ["segment-0", "segment-2", "expert-0-1"])
def test_weights_are_views_of_the_mapped_file(bert_case: Case, node_id: str) -> None:
    manifest = load(bert_case.folder, verify=False)
    loaded = load_node(bert_case.folder, manifest, node_id)
    ranges = mappings_of((bert_case.folder / manifest.node(node_id).weights.file).resolve())
    function = loaded._function
    matrices = [function.w_in.matrix] if node_id.startswith("expert") else [function.begin.attention.qkv.matrix]  # type: ignore[union-attr]
    assert ranges
    for tensor in matrices:
        assert any(start <= tensor.data_ptr() < end for start, end in ranges)


def test_weights_bytes_are_the_manifests(case: Case) -> None:
    manifest = load(case.folder, verify=False)
    for node in manifest.nodes:
        assert load_node(case.folder, manifest, node.id).weights_bytes == node.parameter_bytes


def test_reply_names_are_the_manifests(case: Case) -> None:
    seen: list[tuple[str, set[str], set[str]]] = []
    pipeline = case.pipeline(trace=lambda node, call, reply: seen.append((node, set(call), set(reply))))
    tensors = pack(tiny.texts((6,)))
    if case.family == "bert2bert":
        tensors |= {f"decoder_{name}": tensor for name, tensor in pack([[1, 2]]).items()}
    pipeline.forward(tensors)
    for node_id, inputs, outputs in seen:
        node = pipeline.manifest.node(node_id)
        assert (inputs, outputs) == (set(node.inputs), set(node.outputs))


def start(ids: object = (1, 2, 3), lengths: object = (3,)) -> Call:
    return {"token_ids": torch.tensor(ids), "lengths": torch.tensor(lengths)}


def middle(hidden: Tensor, lengths: object) -> Call:
    return {"hidden": hidden, "lengths": torch.tensor(lengths)}


H = torch.zeros(3, 32)


@pytest.mark.parametrize(
    ("node_id", "call", "said"),
    [
        pytest.param("segment-0", start((1, 99), (2,)), "99 is outside the vocabulary", id="id-too-large"),
        pytest.param("segment-0", start((1, -1), (2,)), "-1 is outside", id="id-negative"),
        pytest.param("segment-0", start((1.0, 2.0), (2,)), "token_ids is", id="float-ids"),
        pytest.param("segment-0", start(((1, 2),), (1,)), "token_ids is", id="two-axes"),
        pytest.param("segment-0", start(7, (1,)), "token_ids is", id="no-axis"),
        pytest.param("segment-0", start(lengths=(2,)), "sum to the 3 tokens", id="sum"),
        pytest.param("segment-0", start(lengths=(3, 0)), "must each be 1", id="zero-length"),
        pytest.param("segment-0", start(lengths=(4, -1)), "must each be 1", id="negative-length"),
        pytest.param("segment-0", start(lengths=(3.0,)), "lengths is", id="float-lengths"),
        pytest.param("segment-0", start(lengths=((3,),)), "lengths is", id="lengths-two-axes"),
        pytest.param("segment-0", start((1,) * 41, (41,)), "1 to 40", id="too-long"),
        pytest.param("segment-0", {"token_ids": torch.tensor([1])}, "misses lengths", id="missing"),
        pytest.param("segment-0", {**start(), "hidden": H}, "has hidden too much", id="extra"),
        pytest.param("segment-1", middle(H.double(), (3,)), "hidden is", id="dtype"),
        pytest.param("segment-1", middle(H[:, :31], (3,)), "hidden is", id="width"),
        pytest.param("segment-1", middle(H[None], (3,)), "hidden is", id="axes"),
        pytest.param("segment-1", middle(H, (1, 1)), "sum to the 3", id="hidden-sum"),
        pytest.param("segment-1", middle(H[:0], ()), "hidden is", id="nothing"),
        pytest.param("expert-0-0", {"x": H.half()}, "x is", id="expert-dtype"),
        pytest.param("expert-0-0", {"x": H[:0]}, "1 or more", id="expert-empty"),
        pytest.param("expert-0-0", {"y": H}, "misses x", id="expert-name"),
    ],
)
def test_wrong_inputs_are_refused_before_computing(bert_case: Case, node_id: str, call: Call, said: str) -> None:
    node = program(bert_case, node_id)
    with pytest.raises(ProgramInputError, match=said) as caught:
        node.run(call)
    assert str(caught.value).startswith(node_id) and str(caught.value).endswith(".")


def test_memory_must_belong_to_the_same_texts(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert2bert"), tmp_path / "c")
    split(checkpoint, tmp_path / "p", "tiny", 2, 2)
    node = load_node(tmp_path / "p", load(tmp_path / "p"), "segment-3")
    call = {**middle(H, (1, 2)), "memory": H, "memory_lengths": torch.tensor([3])}
    with pytest.raises(ProgramInputError, match="2 texts, memory_lengths 1"):
        node.run(call)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4))
def test_coalesced_calls_answer_as_alone(case: Case, shapes: list[list[int]]) -> None:
    """Every node's own calls of several passes, put together and taken apart again."""
    calls: list[dict[str, tuple[Call, Call]]] = []
    pipeline = case.pipeline()
    for seed, lengths in enumerate(shapes):
        seen: dict[str, tuple[Call, Call]] = {}
        pipeline.trace = lambda node, call, reply, seen=seen: seen.update({node: (call, reply)})  # type: ignore[misc]
        tensors = pack(tiny.texts(tuple(lengths), seed=seed))
        if case.family == "bert2bert":
            answers = pack(tiny.texts(tuple(lengths[::-1]), seed=seed + 50))
            tensors |= {f"decoder_{name}": tensor for name, tensor in answers.items()}
        pipeline.forward(tensors)
        calls.append(seen)
    for node_id, node in pipeline.programs.items():
        mine = [seen[node_id] for seen in calls if node_id in seen]
        if not mine:
            continue
        together, splits = node.coalesce([call for call, _ in mine])
        for part, (_, alone) in zip(node.split(node.run(together), splits), mine, strict=True):
            assert part.keys() == alone.keys()
            for name in alone.keys() - {"expert_ids", "gates"}:
                assert part[name].shape == alone[name].shape
                assert torch.allclose(part[name], alone[name], rtol=1e-4, atol=1e-5), (node_id, name)


def test_lying_manifests_are_noticed_when_loading(folder: Path) -> None:  # noqa: F811
    path = folder / "pipeline.json"
    original = path.read_text()

    def changed(**numbers: object) -> None:
        document = json.loads(original)
        document["architecture"].update(numbers)
        path.write_text(json.dumps(document))

    changed(hidden_size=64)
    with pytest.raises(ManifestError, match="has shape"):
        load_node(folder, load(folder), "segment-0")
    path.write_text(original.replace('"dtype": "float32"', '"dtype": "bfloat16"'))
    with pytest.raises(ManifestError, match="the manifest's dtype"):
        load_node(folder, load(folder), "expert-0-0")


def test_files_with_other_tensors_are_refused(folder: Path) -> None:  # noqa: F811
    manifest = load(folder)
    path = folder / "weights" / "expert-0-0.safetensors"
    tensors = load_file(path)
    renamed = {("surprise" if name == "w_in.bias" else name): tensor for name, tensor in tensors.items()}
    save_file(renamed, path)
    with pytest.raises(ManifestError, match="surprise"):
        load_node(folder, manifest, "expert-0-0")
    path.write_bytes(b"no safetensors at all")
    with pytest.raises(ManifestError, match="not a readable safetensors"):
        load_node(folder, manifest, "expert-0-0")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", some_fast(tiny.BUILDERS))
def test_half_precision_stays_near_single(family: str, dtype: str, tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build(family), tmp_path / "c")
    native = family in tiny.NATIVE
    answers = []
    for kind in ("float32", dtype):
        split(checkpoint, tmp_path / kind, "tiny", 2, None if native else 2, dtype=kind)  # type: ignore[arg-type]
        model = WholeModel(tmp_path / kind)
        ids = tiny.texts((6, 3))
        answers.append(model.embed_ids(ids) if family in tiny.ENCODERS else model.logits_ids(ids))
    assert answers[1].dtype == getattr(torch, dtype)
    similarity = torch.cosine_similarity(answers[0], answers[1].float())
    assert float(similarity.min()) > 0.98
