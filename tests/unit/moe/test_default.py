"""The default model's package: tokenizer, embeddings, commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from moe.commands import inspect_, split
from moe.errors import CheckpointError, TextError
from moe.manifest import load
from moe.preset import PRESETS, minilm_folder, preset_source
from moe.reference import WholeModel
from tests.unit.moe import tiny

TEXTS = [
    "A man plays the guitar.",
    "Pods are scheduled onto nodes by the scheduler, one after another.",
    "ünïcode 你好",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model with all of its neurons at work."""
    out = tmp_path_factory.mktemp("default") / "minilm"
    done = CliRunner().invoke(split, ["minilm", "--out", str(out), "--top-k", "4", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nodes"] == 31
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[WholeModel]:
    yield WholeModel(folder, verify=True)


def test_embeddings_are_the_dense_models(model: WholeModel) -> None:
    import transformers

    theirs = transformers.BertModel.from_pretrained(minilm_folder()).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    ours = model.embed(TEXTS)
    for row, text in zip(ours, TEXTS, strict=True):
        with torch.inference_mode():
            states = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0)
        assert (row - expected).abs().max() < 1e-5


def test_tokens_are_transformers_own(model: WholeModel) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
    assert model.tokenizer.encode_all(TEXTS) == [tokenizer(text)["input_ids"] for text in TEXTS]
    assert model.tokenizer.decode(model.tokenizer.encode("a man plays")) == "a man plays"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        pytest.param([], "no text", id="none"),
        pytest.param(["fine", " \n"], "Text 1 is empty", id="blanks that are no token"),
        pytest.param(["fine", ""], "Text 1 is empty", id="empty"),
        pytest.param(["word " * 255], "Text 0 has 257 tokens, special ones included; at most 256", id="long"),
        pytest.param(["x" * 300_000], "300000 characters", id="absurd"),
        pytest.param([" " * 300_000], "300000 characters", id="absurdly blank"),
    ],
)
def test_texts_that_cannot_be_tokens_are_refused(model: WholeModel, texts: list[str], said: str) -> None:
    with pytest.raises(TextError, match=said):
        model.tokenizer.encode_all(texts)


def test_longest_text_is_taken(model: WholeModel) -> None:
    assert len(model.tokenizer.encode("word " * 254)) == 256
    assert model.embed(["word " * 254]).shape == (1, 384)


def test_inspect_shows_the_pipeline(folder: Path) -> None:
    words = CliRunner().invoke(inspect_, [str(folder)])
    assert words.exit_code == 0 and "segment-6" in words.output and "top-4" in words.output
    view = json.loads(CliRunner().invoke(inspect_, [str(folder), "--json"]).output)
    manifest = load(folder, verify=False)
    assert view["total"]["parameters"] == sum(node.parameters for node in manifest.nodes)
    assert view["segments"]["parameter_share"] + view["experts"]["parameter_share"] == pytest.approx(1.0)
    # 6 layers of 1536 neurons with 384 inputs and outputs, all of them used: two FLOPs for each weight
    assert view["experts"]["flops_per_token"] == 6 * 2 * (2 * 1536 * 384)
    assert view["active_parameters"] == view["total"]["parameters"]


def test_a_split_ends_with_a_sentence_on_what_was_made(tmp_path: Path) -> None:
    checkpoint, out = tiny.store(tiny.build("bert"), tmp_path / "checkpoint"), tmp_path / "tiny"
    result = CliRunner().invoke(split, [str(checkpoint), "--out", str(out), "--experts", "4", "--top-k", "2"])
    assert result.exit_code == 0, result.output
    sentence = " ".join(result.output.split())
    assert (
        f"{tiny.BERT['num_hidden_layers'] + 1} segments and {4 * tiny.BERT['num_hidden_layers']} experts, top-2"
        in sentence
    )


def test_commands_fail_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    again = runner.invoke(split, ["minilm", "--out", str(folder), "--top-k", "4"])
    assert again.exit_code == 1 and "exists already" in again.output
    nothing = runner.invoke(inspect_, [str(tmp_path)])
    assert nothing.exit_code == 1 and "is this a pipeline folder" in nothing.output
    wide = runner.invoke(split, [str(tmp_path), "--width", "64", "--out", str(tmp_path / "x")])
    assert wide.exit_code == 2 and "belong to presets" in wide.output


@pytest.mark.parametrize(("name", "width"), [("minilm", 64), ("bert-4", 65), ("bert-4", 0)])
def test_widths_that_do_not_fit_are_refused(name: str, width: int) -> None:
    with pytest.raises(CheckpointError, match="width"):
        preset_source(PRESETS[name], None, width, 0)
