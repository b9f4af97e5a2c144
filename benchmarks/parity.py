"""The pipelines' answers against transformers' own forward, for six families, and the default model's quality.

``python -m benchmarks.parity``: tiny random checkpoints of them are split and asked, in one process and through running
functions over HTTP; the default pipeline is compared with its dense model on texts that it was not trained on. The last
line is one JSON object. All families are compared by the tests (``tests/unit/moe/test_parity.py``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import requests
import torch
import transformers
from torch import Tensor

from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_figures, print_result, print_table
from moe.preset import PRESETS, byte_tokenizer, minilm_folder, preset_adapter
from moe.reference import NodeCall, WholeModel, drive, pack
from moe.split import split

VOCABULARY = 300
START, END = 257, 256
TIMEOUT_S = 60.0
TEXTS = (
    "Experts answer only the tokens that were sent to them.",
    "ok",
    "A sum does not care who computed its parts, nor in which function they ran.",
    "Zwölf Boxkämpfer jagen Viktor.",
)
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
    "max_position_embeddings": 128,
}
BERT = SIZES | {"intermediate_size": 128}
ROPE = SIZES | {
    **{"num_key_value_heads": 2, "num_experts_per_tok": 2, "attn_implementation": "eager"},
    **{"eos_token_id": END, "bos_token_id": END, "pad_token_id": END},
}
NATIVE = ("mixtral", "qwen3_moe", "olmoe")
"""Families whose experts are split as they are."""


def models() -> dict[str, Callable[[], Any]]:
    """Builders of tiny random models by family."""
    t = transformers

    def bert2bert() -> Any:
        encoder, decoder = t.BertConfig(**BERT), t.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
        config = t.EncoderDecoderConfig.from_encoder_decoder_configs(
            encoder, decoder, decoder_start_token_id=START, pad_token_id=0
        )
        return t.EncoderDecoderModel(config=config)

    gpt2: dict[str, Any] = {"n_positions": 128, "n_embd": 64, "n_layer": 3, "n_head": 4}
    gpt2 |= {"vocab_size": VOCABULARY, "bos_token_id": END, "eos_token_id": END}
    qwen: dict[str, Any] = {"num_experts": 4, "moe_intermediate_size": 32, "mlp_only_layers": [1], "head_dim": 32}
    return {
        "bert": lambda: t.BertModel(t.BertConfig(**BERT)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**gpt2)),
        "bert2bert": bert2bert,
        "mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**ROPE, intermediate_size=64, num_local_experts=4)),
        "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**ROPE, **qwen, intermediate_size=64)),
        "olmoe": lambda: t.OlmoeForCausalLM(t.OlmoeConfig(**ROPE, intermediate_size=32, num_experts=4)),
    }


@dataclass(frozen=True)
class Case:
    """A family's pipeline folder, the texts' token ids, and transformers' answers, one row a text."""

    family: str
    folder: Path
    ids: list[list[int]]
    expected: Tensor
    """Embeddings ``[B, d]`` or logits of the last token ``[B, vocab]``."""


def make_case(family: str, build: Callable[[], Any], root: Path, seed: int) -> Case:
    """Build, store and split one tiny checkpoint, all experts of converted families used."""
    torch.manual_seed(seed)
    model = build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "norm" in name.lower() or "ln_" in name
            parameter.normal_(1.0 if norm and name.endswith("weight") else 0.0, 0.15)
    if family in NATIVE:
        model.set_experts_implementation("eager")
    checkpoint = root / f"{family}-checkpoint"
    model.save_pretrained(checkpoint)
    byte_tokenizer(END).save(str(checkpoint / "tokenizer.json"))
    folder = root / family.replace("_", "-")
    split(checkpoint, folder, experts=4, top_k=None if family in NATIVE else 4, seed=seed)
    ids = WholeModel(folder).tokenizer.encode_all(TEXTS)
    return Case(family, folder, ids, torch.stack([whole_answer(family, model, text) for text in ids]))


def whole_answer(family: str, model: Any, ids: list[int]) -> Tensor:
    """Transformers' embedding (mean of states) [d] or next-token logits [vocabulary] of one text."""
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        if family == "bert":
            states: Tensor = model(tokens).last_hidden_state[0]
            return states.mean(0)
        if family == "bert2bert":
            start = torch.tensor([[START]])
            answer: Tensor = model(input_ids=tokens, decoder_input_ids=start).logits[0, -1]
            return answer
        logits: Tensor = model(tokens).logits[0, -1]
        return logits


def run_through(folder: Path, call: NodeCall, ids: Sequence[Sequence[int]]) -> Tensor:
    """Embeddings or logits of the texts [texts, d] (one packed pass) with every node run by ``call``."""
    model = WholeModel(folder)
    tensors = pack(ids)
    if model.manifest.task == "seq2seq-lm":
        tensors |= {f"decoder_{name}": tensor for name, tensor in pack([[START]] * len(ids)).items()}
    reply = drive(model.manifest, call, tensors)
    return reply["embedding"] if "embedding" in reply else reply["logits"]


def in_process(case: Case) -> Tensor:
    programs = WholeModel(case.folder).programs
    return run_through(
        case.folder, lambda node, tensors, all_logits: programs[node].run(tensors, all_logits=all_logits), case.ids
    )


def over_http(case: Case) -> Tensor:
    """The same texts sent as JSON to the running ingress, one request each; answers [texts, d]."""
    rows = []
    with LocalPipeline(case.folder) as pipeline:
        for text in TEXTS:
            answer = requests.post(pipeline.url, json={"inputs": text}, timeout=TIMEOUT_S).json()
            rows.append(torch.tensor(answer["embeddings" if "embeddings" in answer else "logits"][0]))
    return torch.stack(rows)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference in a row of [texts, d] over the row's largest value, the worst row."""
    return float(((ours - theirs).abs().amax(1) / theirs.abs().amax(1)).max())


def measure_families(root: Path, seeds: Sequence[int], serving: bool) -> dict[str, dict[str, float]]:
    """The worst error by family over seeds, in process and through functions."""
    result: dict[str, dict[str, float]] = {}
    for family, build in models().items():
        errors, served = [], []
        for seed in seeds:
            case = make_case(family, build, root / str(seed), seed)
            errors.append(relative_error(in_process(case), case.expected))
            if serving and seed == seeds[0]:
                served.append(relative_error(over_http(case), case.expected))
        row = {"in_process": max(errors), "max_rel_err": max(errors + served)}
        result[family] = row | ({"served": max(served)} if served else {})
    return result


def default_quality(root: Path) -> dict[str, float]:
    """The default pipeline's cosine to its dense model, and its skew."""
    preset = PRESETS["minilm"]
    adapter = preset_adapter(preset, preset.experts, preset.top_k, "neurons")
    folder = root / "minilm"
    split(minilm_folder(), folder, "minilm", preset.experts, preset.top_k, adapter=adapter)
    from moe.distil.measure import evaluate  # brings its corpus along, which the families do not need

    values = evaluate(folder)
    return {f"default_{key}": float(values[key]) for key in ("cosine_mean", "cosine_foreign", "skew")}


@benchmark
@click.option("--seeds", default=3, help="Random checkpoints of each family.")
@click.option("--in-process", is_flag=True, help="Leave out the running functions.")
@click.option("--no-default", is_flag=True, help="Leave out the default model's quality.")
def main(seeds: int, in_process: bool, no_default: bool) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        families = measure_families(Path(name), range(seeds), not in_process)
        quality = {} if no_default else default_quality(Path(name))
    rows = [
        (family, *("–" if error is None else f"{error:.2e}" for error in (row["in_process"], row.get("served"))))
        for family, row in families.items()
    ]
    print_table("worst relative error", ("family", "in process", "over HTTP"), rows, stdout=True)
    print_figures("the default pipeline and its dense model", quality)
    print_result({"families": families, **quality, "seeds": seeds})


if __name__ == "__main__":
    main()
