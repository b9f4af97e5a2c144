"""Text generation over functions next to the whole model in one process: ``python -m benchmarks.generation``.

The model is random and has SmolLM2-135M's shape (30 layers, 576 wide, 9 heads, 3 of them for keys and values, 49,152
words), ten layers with 4 experts of 384, top-2, as Qwen3-MoE; float32. So 21 hops a token, 40 experts, 11 segments.
``functions``: real worker processes, one instance, OpenAI's streaming API over HTTP, times as the client sees them.
``whole``: the same programs in this process, one thread, a continuous batch without functions. ``transformers``: its
own ``generate`` in this process, one thread, a static batch of equal prompts. The three take turns in every round, and
medians of rounds are compared, so load of the machine meets all of them; the functions may use all its cores.

``ttft_ms_p50``: from a request until its first token. TPOT: between a text's tokens. ``tpot_ratio``: at one stream,
functions over whole; ``throughput_ratio_16``: tokens a second at 16 streams, functions over whole.
``kv_bytes_per_token``: stated by the segments; ``kv_ratio``: over 2 · layers · heads · head size · 4.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed, seed_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.streams import pieces
from moe.reference import WholeModel, pack
from moe.split import split

WIDE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "moe_intermediate_size": 384,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [layer for layer in range(30) if layer % 3],
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
KV_MB = 64


@dataclass(frozen=True)
class Times:
    """One way's turn: until each text's first token, between tokens, and tokens a second of all texts together."""

    first_ms: list[float]
    next_ms: list[float]
    tokens_per_s: float


def build(folder: Path, numbers: dict[str, Any], seed: int, tokenizer: Tokenizer | None = None) -> Any:
    """The random model, its pipeline in ``folder/random``; returns transformers' own. ``tokenizer``: by default its
    tokens are the words t0, t1 …"""
    import transformers

    torch.manual_seed(seed)
    config = transformers.Qwen3MoeConfig(**numbers, eos_token_id=numbers["vocab_size"] - 1, norm_topk_prob=True)
    model: Any = transformers.Qwen3MoeForCausalLM(config)
    model.eval()
    model.save_pretrained(folder / "checkpoint")
    if tokenizer is None:
        tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(numbers["vocab_size"])}, unk_token="t0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    split(folder / "checkpoint", folder / "random", "random", 4, None)
    return model


def through_functions(address: str, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[Times, list[str]]:
    """One stream a prompt, all at once; also the texts."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        begun_s = time.perf_counter()
        streams = list(pool.map(lambda prompt: _timed(address, prompt, tokens), prompts))
        spent_s = time.perf_counter() - begun_s
    first, following = [], []
    for stream in streams:
        times = [at_s for at_s, _ in stream]
        first.append(times[0] * 1000)
        following += [(later - earlier) * 1000 for earlier, later in pairwise(times)]
    texts = ["".join(text for _, text in stream) for stream in streams]
    return Times(first, following, len(prompts) * tokens / spent_s), texts


def _timed(address: str, prompt: Sequence[int], tokens: int) -> list[tuple[float, str]]:
    """Seconds since the request, and text, of each piece that holds any."""
    begun_s = time.perf_counter()
    texts = pieces(address, {"prompt": list(prompt), "max_tokens": tokens})
    return [(time.perf_counter() - begun_s, text) for text in texts]


def in_one_process(model: WholeModel, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[Times, list[list[int]]]:
    """A continuous batch over the same programs; also the new tokens."""
    begun_s = time.perf_counter()
    new = [list(prompt) for prompt in prompts]
    starts = [0] * len(prompts)
    written: list[list[int]] = [[] for _ in prompts]
    moments = []
    for _ in range(tokens):
        call = pack(new) | {
            "sequences": torch.arange(len(prompts)),
            "starts": torch.tensor(starts),
            "parents": torch.full((len(prompts),), -1),
        }
        chosen = model.forward(call)["logits"].argmax(-1).tolist()
        moments.append(time.perf_counter() - begun_s)
        starts = [start + len(part) for start, part in zip(starts, new, strict=True)]
        new = [[token] for token in chosen]
        for text, token in zip(written, chosen, strict=True):
            text.append(token)
    for segment in model.manifest.segments:
        cache = model.programs[segment.id].cache
        assert cache is not None
        cache.free(range(len(prompts)))
    return _evenly(moments, len(prompts), tokens), written


def by_transformers(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Times:
    """A static batch; times of its tokens as its logits are processed."""
    moments: list[float] = []
    begun_s = time.perf_counter()

    def note(_: Any, scores: Any) -> Any:
        moments.append(time.perf_counter() - begun_s)
        return scores

    with torch.inference_mode():
        model.generate(
            torch.tensor(prompts), max_new_tokens=tokens, do_sample=False, logits_processor=[note], eos_token_id=None
        )
    return _evenly(moments, len(prompts), tokens)


def _evenly(moments: Sequence[float], texts: int, tokens: int) -> Times:
    following = [(later - earlier) * 1000 for earlier, later in pairwise(moments)]
    return Times([moments[0] * 1000], following, texts * tokens / moments[-1])


def measure(
    folder: Path,
    numbers: dict[str, Any],
    streams: Sequence[int],
    rounds: int,
    prompt_tokens: int,
    tokens: int,
    seed: int,
) -> dict[str, Any]:
    """All figures. Raises RuntimeError when functions and the whole model write different texts."""
    torch.set_num_threads(1)
    theirs = build(folder, numbers, seed)
    model = WholeModel(folder / "random")
    caches = [model.programs[segment.id].open_cache(KV_MB << 20) for segment in model.manifest.segments]
    chosen = random.Random(seed)
    taken: dict[tuple[str, int], list[Times]] = defaultdict(list)
    with (
        LocalPipeline(folder / "random", max_inflight=64, environ={"smoe_kv_mb": str(KV_MB)}) as served,
        progress(rounds * len(streams)) as show,
    ):
        for number in range(-1, rounds):  # the first round only warms
            for place, count in enumerate(streams):
                prompts = [
                    [chosen.randrange(numbers["vocab_size"] - 1) for _ in range(prompt_tokens)] for _ in range(count)
                ]
                functions, texts = through_functions(served.ingress.address, prompts, tokens)
                whole, written = in_one_process(model, prompts, tokens)
                expected = [" " + " ".join(f"t{token}" for token in text) for text in written]
                if [text.strip() for text in texts] != [text.strip() for text in expected]:
                    raise RuntimeError("functions and the whole model wrote different texts")
                turn = {
                    "functions": functions,
                    "whole": whole,
                    "transformers": by_transformers(theirs, prompts, tokens),
                }
                for way, times in turn.items() if number >= 0 else ():
                    taken[way, count].append(times)
                show(f"{count} streams", max(0, number) * len(streams) + place + 1)
    kv = sum(cache.bytes_per_token for cache in caches)
    arithmetic = 2 * 4 * numbers["num_hidden_layers"] * numbers["num_key_value_heads"] * numbers["head_dim"]
    return figures(taken, streams) | {"kv_bytes_per_token": kv, "kv_ratio": kv / arithmetic}


def figures(taken: dict[tuple[str, int], list[Times]], streams: Sequence[int]) -> dict[str, Any]:
    """Rows by way and number of streams, and ratios of functions over the whole model."""
    rows = {
        f"{way}_{count}": {
            "ttft_ms_p50": round(statistics.median(statistics.median(one.first_ms) for one in turns), 1),
            "tpot_ms_p50": round(statistics.median(statistics.median(one.next_ms) for one in turns), 2),
            "tokens_per_s": round(statistics.median(one.tokens_per_s for one in turns), 2),
        }
        for (way, count), turns in taken.items()
    }
    few, many = min(streams), max(streams)
    functions, whole = rows[f"functions_{few}"], rows[f"whole_{few}"]
    return {
        "rows": rows,
        "ttft_ms_p50": functions["ttft_ms_p50"],
        "tpot_ratio": round(functions["tpot_ms_p50"] / whole["tpot_ms_p50"], 3),
        f"throughput_ratio_{many}": round(
            rows[f"functions_{many}"]["tokens_per_s"] / rows[f"whole_{many}"]["tokens_per_s"], 3
        ),
    }


@benchmark
@click.option("--streams", default="1,4,16", callback=listed(int), help="Texts at once, comma list.")
@click.option("--rounds", default=3, type=AT_LEAST_1, help="Turns of each way.")
@click.option("--prompt-tokens", default=64, type=AT_LEAST_1, help="Tokens of each prompt.")
@click.option("--tokens", default=32, type=click.IntRange(2), help="Tokens written to each.")
@seed_option
def main(streams: tuple[int, ...], rounds: int, prompt_tokens: int, tokens: int, seed: int) -> None:
    with run_folder("smoe-generation-") as folder:
        result = measure(
            folder, WIDE, streams=streams, rounds=rounds, prompt_tokens=prompt_tokens, tokens=tokens, seed=seed
        )
    print_table(
        "generation over functions, and by the whole model in one process",
        ("way and streams", "TTFT, ms", "TPOT, ms", "tokens/s"),
        [(name, *row.values()) for name, row in result["rows"].items()],
    )
    print_result(result)


if __name__ == "__main__":
    main()
