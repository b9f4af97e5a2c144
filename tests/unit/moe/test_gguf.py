"""GGUF files: read as transformers reads them, and refused where they hold what is not computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moe.checkpoints.gguf import GgufSource
from moe.commands import split as split_command
from moe.errors import CheckpointError
from moe.manifest import load
from moe.reference import WholeModel
from moe.split import split
from tests.unit.moe import gguf_files, tiny

SIZES: dict[str, Any] = {"vocab_size": len(gguf_files.WORDS), "intermediate_size": 64, "rope_theta": 5e4}


def model(**changes: Any) -> Any:
    return tiny.build("llama", **{**SIZES, "tie_word_embeddings": True, **changes})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write(model(), tmp_path_factory.mktemp("gguf") / "tiny.gguf", kind=gguf_files.Q4_1)


def by_transformers(path: Path) -> Any:
    import transformers

    return transformers.LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"num_key_value_heads": 4}])
def test_the_pipeline_of_a_file_computes_what_transformers_reads_from_it(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    path = gguf_files.write(model(**changes), tmp_path / "tiny.gguf", kind=gguf_files.Q4_1)
    split(path, tmp_path / "p", "tiny", 2, 2)
    text = tiny.texts((12,))[0]
    ours = WholeModel(tmp_path / "p").logits_ids([text], all_tokens=True)
    assert tiny.relative(ours, tiny.whole_answer("llama", by_transformers(path), text)) < 1e-5


def test_layers_without_experts_change_nothing(file: Path, tmp_path: Path) -> None:
    split(file, tmp_path / "all", "tiny", 2, 2)
    done = CliRunner().invoke(
        split_command, [str(file), "--out", str(tmp_path / "one"), "--layers", "1", "--experts", "2", "--top-k", "2"]
    )
    assert done.exit_code == 0, done.output
    assert load(tmp_path / "one").architecture["moe_layers"] == [1]
    text = tiny.texts((12,))[0]
    whole, one = (WholeModel(tmp_path / name).logits_ids([text], all_tokens=True) for name in ("all", "one"))
    assert tiny.relative(one, whole) < 1e-5


@given(st.text(alphabet=st.sampled_from("abthe \n.,!?'s<>|_xyz"), min_size=1, max_size=60))
def test_tokens_are_transformers_own(file: Path, text: str) -> None:
    theirs = _tokenizer_of_transformers(file)
    assert GgufSource(file).tokenizer.encode(text).ids == theirs(text)["input_ids"]


_KNOWN: dict[Path, Any] = {}


def _tokenizer_of_transformers(path: Path) -> Any:
    import transformers

    if path not in _KNOWN:
        _KNOWN[path] = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return _KNOWN[path]


def test_digits_are_tokens_of_their_own(file: Path) -> None:
    assert GgufSource(file).tokenizer.encode("the  12the").tokens == ["the", "ĠĠ", "1", "2", "the"]


def test_control_tokens_are_whole_and_hidden_in_answers(file: Path) -> None:
    tokenizer = GgufSource(file).tokenizer
    ids = tokenizer.encode("<|im_start|>the<|im_end|>").ids
    assert ids == [1, gguf_files.WORDS.index("the"), 2]
    assert tokenizer.decode(ids) == "the"


def test_the_pipeline_has_the_files_tokenizer_and_template(file: Path, tmp_path: Path) -> None:
    settings = split(file, tmp_path / "p", "tiny", 2, 2).tokenizer
    assert settings is not None and settings.special["eos"] == 2 and settings.chat_template is not None
    assert (tmp_path / "p" / settings.chat_template).read_text() == gguf_files.TEMPLATE
    assert WholeModel(tmp_path / "p").tokenizer.encode("the") == [gguf_files.WORDS.index("the")]


@pytest.mark.parametrize(
    ("keys", "ends"),
    [
        pytest.param({}, {2}, id="of a text alone"),
        pytest.param({"tokenizer__ggml__eot_token_id": 0}, {2, 0}, id="of a turn"),
        pytest.param(
            {"tokenizer__ggml__eot_token_id": 2, "tokenizer__ggml__eom_token_id": 1}, {2, 1}, id="of a message"
        ),
        pytest.param({"tokenizer__ggml__eos_token_id": None, "tokenizer__ggml__eot_token_id": 0}, {0}, id="no eos"),
    ],
)
def test_every_token_that_ends_a_text_is_in_the_manifest(keys: dict[str, Any], ends: set[int], tmp_path: Path) -> None:
    path = gguf_files.write(model(), tmp_path / "tiny.gguf", **keys)
    split(path, tmp_path / "p", "tiny", 2, 2)
    settings = load(tmp_path / "p").tokenizer
    assert settings is not None and settings.end_tokens == ends


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param({"llama__rope__scaling__type": "yarn"}, "scaled rotary positions", id="scaled"),
        pytest.param({"llama__expert_count": 4}, "llama.expert_count", id="mixture"),
        pytest.param({"llama__rope__dimension_count": 4}, "rope.dimension_count differs", id="partial rotation"),
        pytest.param({"llama__block_count": None}, "does not state num_hidden_layers", id="layers"),
        pytest.param({"tokenizer__ggml__pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'", id="pre-tokenizer"),
        pytest.param({"tokenizer__ggml__model": "llama"}, "tokenizer 'llama'", id="sentencepiece"),
    ],
)
def test_files_that_hold_more_are_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = gguf_files.write(model(), tmp_path / "tiny.gguf", **keys)
    with pytest.raises(CheckpointError, match=said):
        split(path, tmp_path / "p", "tiny", 2, 2)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        GgufSource(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("layers", "said"), [("", "whole numbers"), ("1,x", "whole numbers"), ("3", "0 to 2"), ("1,1", "different")]
)
def test_layers_that_are_not_there_are_refused(file: Path, layers: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(split_command, [str(file), "--out", str(tmp_path / "p"), "--layers", layers])
    assert done.exit_code != 0 and said in done.output


def test_encoders_have_experts_in_all_layers(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    with pytest.raises(CheckpointError, match="rotary positions"):
        split(checkpoint, tmp_path / "p", "tiny", 2, 2, layers=[1])
