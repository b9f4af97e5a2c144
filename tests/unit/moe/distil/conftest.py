"""A tiny random BERT checkpoint folder, and its encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moe.checkpoints.bert import BertReader
from moe.checkpoints.source import FolderSource
from moe.distil.start import encoder_of
from moe.distil.student import DenseEncoder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    model = BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    folder = tmp_path_factory.mktemp("tiny")
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": ["BertModel"]}))
    return folder


@pytest.fixture(scope="session")
def reader(tiny: Path) -> BertReader:
    return BertReader(FolderSource(tiny))


@pytest.fixture(scope="session")
def dense(reader: BertReader) -> DenseEncoder:
    return encoder_of(reader)
