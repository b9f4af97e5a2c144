from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from moe.checkpoints.bert import BertReader
from moe.checkpoints.source import FolderSource
from moe.convert import apply_adapter
from moe.dense import load_adapter
from moe.distil.adapter import MAX_BYTES, save_adapter
from moe.distil.start import start
from moe.distil.student import Batch, DenseEncoder
from moe.errors import CheckpointError
from moe.manifest import Router
from moe.manifest_proof import sha256_of
from moe.preset import ADAPTERS, minilm_folder
from moe.reference import WholeModel
from moe.split import split

MINILM_ADAPTER = ADAPTERS / "minilm.safetensors"
ROUTER = {"top_k": 2, "gates": "ones", "normalise": False, "scale": 1.0}
TEXTS = [[3, 9, 27, 4, 60, 12], [5, 6, 7], [*range(1, 20)]]


@pytest.fixture(scope="module")
def file(dense: DenseEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the tiny model whose changes are random, so that a missing one would show."""
    student = start(dense, [Batch.of(TEXTS)], experts=4, top_k=2, shared=8, rank=3, seed=0)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    path = tmp_path_factory.mktemp("adapter") / "tiny.safetensors"
    save_adapter(path, student.adapter(), {"router": ROUTER, "note": "test"})
    return path


def test_the_split_pipeline_computes_what_the_student_does(
    tiny: Path, dense: DenseEncoder, file: Path, tmp_path: Path
) -> None:
    split(tiny, tmp_path / "out", experts=4, top_k=2, adapter=file)
    pipeline = WholeModel(tmp_path / "out").embed_ids(TEXTS)
    student = start(dense, [Batch.of(TEXTS)], experts=4, top_k=2, shared=8, rank=3, seed=0)
    tensors = load_adapter(file).tensors
    with torch.no_grad():
        for index, layer in enumerate(student.layers):
            for name in layer.adapter(index):
                plain = name.removeprefix(f"layers.{index}.")
                target = {
                    "router.weight": layer.router_weight,
                    "router.bias": layer.router_bias,
                    "expert.bias": layer.expert_bias,
                    **{key.replace("-", "."): value for key, value in layer.low_rank.items()},
                    **{key.replace("-", "."): value for key, value in layer.shift.items()},
                }
                if plain != "groups":
                    target[plain].copy_(tensors[name])
        expected = student(Batch.of(TEXTS)).embedding
    pipeline = torch.nn.functional.normalize(pipeline, dim=-1)
    torch.testing.assert_close(pipeline, expected, rtol=1e-4, atol=1e-5)


def test_base_and_adapter_give_the_same_pipeline_each_time(tiny: Path, file: Path, tmp_path: Path) -> None:
    first = split(tiny, tmp_path / "a", "same", experts=4, top_k=2, adapter=file)
    again = split(tiny, tmp_path / "b", "same", experts=4, top_k=2, adapter=file)
    assert first.files == again.files


def test_saving_again_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    tensors = dict(load_adapter(file).tensors)
    save_adapter(tmp_path / "again.safetensors", tensors, {"note": "test", "router": ROUTER})
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_the_router_is_read_back(file: Path) -> None:
    assert load_adapter(file).router == Router(**ROUTER)  # type: ignore[arg-type]


def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"not one")
    with pytest.raises(CheckpointError, match="not a readable adapter"):
        load_adapter(tmp_path / "x.safetensors")


def test_values_fp16_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"layers\.0\.x"):
        save_adapter(tmp_path / "x", {"layers.0.x": torch.tensor([1e6])}, {"router": ROUTER})


def test_an_adapter_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lower the rank"):
        save_adapter(tmp_path / "x", {"layers.0.x": torch.zeros(MAX_BYTES // 2 + 1)}, {"router": ROUTER})
    assert not (tmp_path / "x").exists()


def test_the_committed_adapter_is_small_and_belongs_to_the_installed_model() -> None:
    assert MINILM_ADAPTER.stat().st_size <= 3_000_000
    with safe_open(str(MINILM_ADAPTER), framework="pt") as file:
        info = json.loads(file.metadata()["smoe"])
    assert info["base_sha256"] == sha256_of(minilm_folder() / "model.safetensors")
    assert info["router"]["top_k"] == 2


def test_the_committed_adapter_fits_every_layer() -> None:
    adapter, reader = load_adapter(MINILM_ADAPTER), BertReader(FolderSource(minilm_folder()))
    for layer in range(reader.layers):
        adapted = apply_adapter(adapter.tensors, layer, reader.segment(layer), reader.ffn(layer))
        sizes = [expert["w_in.weight"].shape[0] for expert in adapted.experts]
        shared = adapted.segment["shared.w_in.weight"].shape[0]
        assert len(sizes) == 4
        assert max(sizes) == min(sizes)
        assert sum(sizes) + shared == 1536


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_default_pipeline_answers_like_the_dense_model(tmp_path: Path) -> None:
    from moe.distil.measure import evaluate

    split(minilm_folder(), tmp_path / "minilm", experts=4, top_k=2, adapter=MINILM_ADAPTER)
    result = evaluate(tmp_path / "minilm", per_kind=60)
    assert result["cosine_mean"] >= 0.95
    assert result["cosine_foreign"] >= 0.90
    assert result["skew"] >= 1.3
