"""The pipelines' answers against transformers' own forward, for every family, and the default model's quality.

``python -m benchmarks.parity``: tiny random checkpoints of all families are split and asked, in one
process and through running functions over HTTP; the default pipeline is compared with its dense
model on texts that it was not trained on. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.report import print_result
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
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}
ROPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "attn_implementation": "eager",
    "eos_token_id": END,
    "bos_token_id": END,
    "pad_token_id": END,
}

Launch = Callable[[Path], AbstractContextManager[str]]
"""Starts a pipeline folder as functions; gives the ingress's URL while it runs."""


def models() -> dict[str, Callable[[], Any]]:
    """Builders of tiny random models by family."""
    t = transformers

    def bert2bert() -> Any:
        encoder, decoder = t.BertConfig(**BERT), t.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
        config = t.EncoderDecoderConfig.from_encoder_decoder_configs(
            encoder, decoder, decoder_start_token_id=START, pad_token_id=0
        )
        return t.EncoderDecoderModel(config=config)

    gpt2: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": 128,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "bos_token_id": END,
        "eos_token_id": END,
    }
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
    if family in ("mixtral", "qwen3_moe", "olmoe"):
        model.set_experts_implementation("eager")
    checkpoint = root / f"{family}-checkpoint"
    model.save_pretrained(checkpoint)
    byte_tokenizer(END).save(str(checkpoint / "tokenizer.json"))
    folder = root / family.replace("_", "-")
    native = family in ("mixtral", "qwen3_moe", "olmoe")
    split(checkpoint, folder, experts=4, top_k=None if native else 4, seed=seed)
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


def over_http(case: Case, launch: Launch) -> Tensor:
    """The same texts sent as JSON to the running ingress, one request each; answers [texts, d]."""
    rows = []
    with launch(case.folder) as url:
        for text in TEXTS:
            request = urllib.request.Request(
                url, json.dumps({"inputs": text}).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                answer = json.load(reply)
            rows.append(torch.tensor(answer["embeddings" if "embeddings" in answer else "logits"][0]))
    return torch.stack(rows)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference in a row of [texts, d] over the row's largest value, the worst row."""
    return float(((ours - theirs).abs().amax(1) / theirs.abs().amax(1)).max())


def measure_families(root: Path, seeds: Sequence[int], launch: Launch | None) -> dict[str, dict[str, float]]:
    """The worst error by family over seeds, in process and through functions."""
    result: dict[str, dict[str, float]] = {}
    for family, build in models().items():
        errors, served = [], []
        for seed in seeds:
            case = make_case(family, build, root / str(seed), seed)
            errors.append(relative_error(in_process(case), case.expected))
            if launch is not None and seed == seeds[0]:
                served.append(relative_error(over_http(case, launch), case.expected))
        row = {"in_process": max(errors), "max_rel_err": max(errors + served)}
        result[family] = row | ({"served": max(served)} if served else {})
        print(f"{family:10}  in process {max(errors):.2e}" + (f"  served {max(served):.2e}" if served else ""))
    return result


def default_quality(root: Path) -> dict[str, float]:
    """The default pipeline's cosine to its dense model, and its skew."""
    preset = PRESETS["minilm"]
    adapter = preset_adapter(preset, preset.experts, preset.top_k, "neurons")
    folder = root / "minilm"
    split(minilm_folder(), folder, "minilm", preset.experts, preset.top_k, adapter=adapter)
    from moe.distil import evaluate  # brings its corpus along, which the families do not need

    values = evaluate(folder)
    return {f"default_{key}": float(values[key]) for key in ("cosine_mean", "cosine_foreign", "skew")}


def launcher() -> Launch:
    """Pipelines as local worker processes."""

    @contextmanager
    def launch(folder: Path) -> Iterator[str]:
        with LocalPipeline(folder) as pipeline:
            yield pipeline.url

    return launch


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="random checkpoints per family (%(default)s)")
    parser.add_argument("--in-process", action="store_true", help="leave out the running functions")
    parser.add_argument("--no-default", action="store_true", help="leave out the default model's quality")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        launch = None if options.in_process else launcher()
        families = measure_families(Path(name), range(options.seeds), launch)
        quality = {} if options.no_default else default_quality(Path(name))
    for key, value in quality.items():
        print(f"{key:24} {value:.4f}")
    print_result({"families": families, **quality, "seeds": options.seeds}, options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
