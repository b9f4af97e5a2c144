"""Distillation of decoders on a tiny Llama: the dense model, its experts, what training changes, the file it writes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moe.checkpoints.llama import LlamaReader
from moe.checkpoints.open import open_source
from moe.dense import load_adapter
from moe.distil import decode, prose
from moe.distil.commands import distil
from moe.distil.decoder import DenseDecoder
from moe.distil.layers import DecoderRecipe, expert_inputs, layer_loss, maker, sensitivity, train_jointly, train_layer
from moe.distil.measure import busiest_over_mean
from moe.distil.mixture import Mixture
from moe.distil.perplexity import compare, summary
from moe.errors import TextError
from moe.reference import WholeModel
from moe.split import split
from tests.unit.moe import gguf_files, tiny

RECIPE = DecoderRecipe(
    layers=2, shared=16, rank=4, length=16, batch_tokens=64, tokens=512, joint=256, rate=1e-2, rounds=2
)
TEXT = "the cat and the hen, the end of that! (there) is this then? no: they <see> it."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab_size": len(gguf_files.WORDS), "intermediate_size": 64, "max_position_embeddings": 512}
    model = tiny.build("llama", tie_word_embeddings=True, **sizes)
    return gguf_files.write(model, tmp_path_factory.mktemp("distil") / "tiny.gguf", kind=gguf_files.F32)


@pytest.fixture(scope="module")
def dense(file: Path) -> DenseDecoder:
    return DenseDecoder.of(LlamaReader(open_source(file)))


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(len(gguf_files.WORDS), (32, 16), generator=torch.Generator().manual_seed(4))


def states_of(dense: DenseDecoder, ids: torch.Tensor, layer: int) -> torch.Tensor:
    with torch.no_grad():
        return dense.residuals(ids)[layer]


def mixture(dense: DenseDecoder, ids: torch.Tensor, layer: int = 1, **changes: Any) -> Mixture:
    recipe = replace(RECIPE, **changes)
    return maker(dense, recipe)(layer, dense.blocks[layer].norm(states_of(dense, ids, layer)))


def test_the_dense_decoder_is_the_pipeline_with_every_neuron(
    file: Path, dense: DenseDecoder, ids: torch.Tensor, tmp_path: Path
) -> None:
    split(file, tmp_path / "p", "tiny", 2, 2)
    expected = WholeModel(tmp_path / "p").logits_ids(ids[:2].tolist(), all_tokens=True)
    residuals = dense.residuals(ids[:2])
    assert tiny.relative(dense.logits(residuals[-1]), expected) < 1e-5
    assert tiny.relative(dense.onward(ids[:2], 1, residuals[1]), residuals[-1]) < 1e-6


def test_with_every_expert_chosen_a_mixture_is_the_dense_network(dense: DenseDecoder, ids: torch.Tensor) -> None:
    module, states = mixture(dense, ids, top_k=4), states_of(dense, ids, 1)
    loss = layer_loss(module, dense, 1, states, replace(RECIPE, collapse=0.0))
    assert loss.item() == pytest.approx(0.0, abs=1e-9)


def test_the_means_of_experts_that_a_token_does_not_use_stay(dense: DenseDecoder, ids: torch.Tensor) -> None:
    module, states = mixture(dense, ids), states_of(dense, ids, 1)
    x = dense.blocks[1].norm(states)
    with torch.no_grad():
        left = dense.blocks[1].ffn(x) - module(x)  # [T, d]
        assert left.mean(0).norm() < 0.05 * left.norm(dim=1).mean()


@pytest.mark.slow
def test_training_a_layer_lowers_its_loss(dense: DenseDecoder, ids: torch.Tensor) -> None:
    recipe = replace(RECIPE, rounds=40, rate=1e-3)  # at 1e-2 the loss rises or falls, by the processor's rounding
    losses = train_layer(mixture(dense, ids), dense, 1, states_of(dense, ids, 1), recipe)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])  # each sum is one pass over all states


def test_gradients_reach_experts_that_were_not_chosen(dense: DenseDecoder, ids: torch.Tensor) -> None:
    module = mixture(dense, ids, top_k=1)
    layer_loss(module, dense, 1, states_of(dense, ids, 1), RECIPE).backward()
    assert bool((module.router_weight.grad.abs().sum(1) > 0).all())


@pytest.mark.slow
def test_layers_trained_together_come_closer_to_the_dense_model(dense: DenseDecoder, ids: torch.Tensor) -> None:
    modules = {layer: mixture(dense, ids, layer) for layer in (0, 2)}
    losses = train_jointly(modules, dense, ids.repeat(4, 1), replace(RECIPE, joint=2048, joint_rate=1e-2))
    assert len(losses) == 32 and sum(losses[-8:]) < 0.8 * sum(losses[:8])


def test_a_batch_of_one_text_trains_after_states_were_computed(file: Path, ids: torch.Tensor) -> None:
    fresh = DenseDecoder.of(LlamaReader(open_source(file)))
    states = expert_inputs(fresh, ids, [1])[1]
    modules = {1: maker(fresh, RECIPE)(1, fresh.blocks[1].norm(states))}
    assert len(train_jointly(modules, fresh, ids[:1], replace(RECIPE, joint=16))) == 1


def test_sensitivity_is_zero_where_nothing_is_left_out(dense: DenseDecoder, ids: torch.Tensor) -> None:
    states = {layer: states_of(dense, ids, layer) for layer in range(3)}
    every = sensitivity(dense, ids, states, maker(dense, replace(RECIPE, top_k=4)))
    assert all(value == pytest.approx(0.0, abs=1e-4) for value in every.values())
    fewer = sensitivity(dense, ids, states, maker(dense, replace(RECIPE, top_k=1, shared=0)))
    assert all(abs(value) > 1e-4 for value in fewer.values())


def test_the_adapter_file_splits_into_the_trained_mixtures(
    file: Path, dense: DenseDecoder, ids: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"code": [f"{TEXT} {place}" for place in range(400)]}
    monkeypatch.setattr(decode, "training_texts", lambda *_: (texts, texts))
    seen: list[float] = []
    report = decode.distil_decoder(
        file, tmp_path / "a.safetensors", RECIPE, progress=lambda step: seen.append(step.done)
    )
    assert seen == sorted(seen) and seen[-1] == 1.0
    adapter = load_adapter(tmp_path / "a.safetensors")
    assert adapter.layers == tuple(report["layers"]) and len(adapter.layers) == 2 and adapter.experts == 4
    split(file, tmp_path / "p", "tiny", 4, adapter=tmp_path / "a.safetensors")
    modules = {}
    for place, layer in enumerate(adapter.layers):
        module = mixture(dense, ids, layer)
        named = {name.split(".", 2)[2]: t for name, t in adapter.tensors.items() if name.startswith(f"layers.{place}.")}
        modules[layer] = remade(module, dense, layer, named)
    with torch.no_grad():
        expected = dense.logits(dense.onward(ids[:2], min(modules), states_of(dense, ids[:2], min(modules)), modules))
    assert tiny.relative(WholeModel(tmp_path / "p").logits_ids(ids[:2].tolist(), all_tokens=True), expected) < 1e-5


def test_layers_that_are_named_get_experts(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"code": [f"{TEXT} {place}" for place in range(40)]}
    monkeypatch.setattr(decode, "training_texts", lambda *_: (texts, texts))
    asked = [str(file), "--out", str(tmp_path / "a"), "--layers", "2", "--at", "2,0", "--shared", "16", "--rank", "4"]
    done = CliRunner().invoke(distil, [*asked, "--rounds", "2", "--joint", "256", "--tokens", "512", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert load_adapter(tmp_path / "a").layers == (0, 2)


def remade(module: Mixture, dense: DenseDecoder, layer: int, tensors: dict[str, torch.Tensor]) -> Mixture:
    """A mixture with the tensors of an adapter's layer."""
    from moe.convert import Groups

    new = Mixture(dense.ffns[layer], Groups.from_neurons(tensors["groups"]), module.top_k, RECIPE.rank, 0)
    names = {"in_down": "ffn.gate_up.down", "in_up": "ffn.gate_up.up", "out_down": "ffn.w_out.down"}
    names |= {"out_up": "ffn.w_out.up", "router_weight": "router.weight", "router_bias": "router.bias"}
    with torch.no_grad():
        for ours, theirs in (names | {"expert_bias": "expert.bias"}).items():
            getattr(new, ours).copy_(tensors[theirs].float())
    return new


def test_perplexity_of_the_dense_model_as_its_own_pipeline_is_equal(
    file: Path, dense: DenseDecoder, tmp_path: Path
) -> None:
    split(file, tmp_path / "p", "tiny", 2, 2)
    tokenizer = open_source(file).tokenizer  # type: ignore[attr-defined]
    result = compare(tmp_path / "p", dense, tokenizer, {"some": [TEXT] * 40}, tokens=1024)
    assert result["kinds"]["some"]["tokens"] == 1024
    assert result["ratio"] == pytest.approx(1.0, abs=1e-3) and result["skew"] == 1.0


def test_ratios_come_with_an_interval_over_windows() -> None:
    row = summary(torch.tensor([[1.0, 1.2], [2.0, 2.2], [3.0, 3.2]]))
    assert row["ratio"] == row["ratio_low"] == row["ratio_high"] == pytest.approx(math.exp(0.2), abs=1e-4)
    wide = summary(torch.tensor([[1.0, 1.2], [2.0, 2.4]]))
    assert wide["ratio_low"] < wide["ratio"] < wide["ratio_high"]
    assert busiest_over_mean(torch.tensor([3, 1])) == 1.5


def test_measured_texts_are_none_of_those_trained_on(tmp_path: Path) -> None:
    assert not set(prose.PROMPTS) & {"encyclopedia", "school"}
    names = {name for name, _ in prose.PROMPTS.values()}
    assert not names & {"wikitext-2-valid.txt", "gsm8k_test_first_900.jsonl", "HumanEval.jsonl.gz"}
    assert set(prose.PROMPTS) | set(prose.PACKAGES) | {"code"} == set(prose.SHARES)
    with pytest.raises(TextError, match="cannot be read"):
        prose.measured_texts(tmp_path)


def test_training_without_any_folder_reads_pythons_own_sources(tmp_path: Path) -> None:
    training, held_out = prose.training_texts(tmp_path, tmp_path)
    assert set(training) == {"code"} and any("\n    " in text for text in training["code"])
    assert not set(training["code"]) & set(held_out["code"])


@given(st.dictionaries(st.sampled_from(sorted(prose.SHARES)), st.floats(0.01, 1), min_size=1), st.integers(0, 99))
def test_blocks_are_shared_out_whole_and_in_proportion(shares: dict[str, float], count: int) -> None:
    counts = prose.apportioned(shares, count)
    assert sum(counts.values()) == count and counts.keys() == shares.keys()
    assert all(abs(counts[kind] - count * share / sum(shares.values())) < 1 for kind, share in shares.items())


def test_a_few_held_out_tokens_of_many_kinds_are_still_blocks(file: Path) -> None:
    tokenizer = decode.opened(file)[1]
    texts = {kind: [TEXT * 20] for kind in prose.SHARES}
    assert prose.mixed(texts, tokenizer, 16, 48, 0).shape == (3, 16)


def test_too_little_text_is_reported_in_a_sentence(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prose, "sources", lambda _: [(f"module {number}", [f"{number} {TEXT}"]) for number in range(40)]
    )
    asked = [str(file), "--out", str(tmp_path / "a"), "--texts", str(tmp_path), "--system", str(tmp_path)]
    done = CliRunner().invoke(distil, [*asked, "--tokens", "60", "--layers", "2"])
    assert done.exit_code == 1 and not (tmp_path / "a").exists()
    assert "There is too little text: 60 tokens were asked for" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--layers", "9"], "do not fit a model of 3 layers", id="layers"),
        pytest.param(["--layers", "2", "--at", "1,3"], "layers (1, 3) were asked for, and there are 0 to 2", id="at"),
        pytest.param(["--top-k", "5"], "top-5 of 4", id="top-k"),
    ],
)
def test_settings_that_do_not_fit_are_refused(file: Path, arguments: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(distil, [str(file), "--out", str(tmp_path / "a"), *arguments])
    assert done.exit_code == 1 and said in " ".join(done.output.split())


def test_mixtures_cannot_be_distilled(tmp_path: Path) -> None:
    tiny.store(tiny.build("mixtral"), tmp_path / "c")
    done = CliRunner().invoke(distil, [str(tmp_path / "c"), "--out", str(tmp_path / "a"), "--json"])
    assert done.exit_code == 1 and "model_type 'mixtral' cannot be distilled" in " ".join(done.output.split())
    assert json.loads((tmp_path / "c" / "config.json").read_text())["model_type"] == "mixtral"
