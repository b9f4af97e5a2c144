"""Quality and load of the sparse decoder that ships: ``python -m benchmarks.sparse_default [--texts FOLDER]``.

Perplexity of the preset smollm2, its adapter's experts in some layers, next to the dense model's on the same windows
of 256 tokens, by kind of text. None of these texts was trained on: an encyclopedia (wikitext-2-valid), school exercises
with answers (gsm8k) and code (HumanEval). The dense model is the dequantised Q4_1 file, not the published checkpoint.
Load is tokens of the busiest expert of a layer over the mean. Nothing is timed. The last line is one JSON object.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import torch

from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark
from benchmarks.harness.report import print_result, print_table, progress
from moe.dense import load_adapter
from moe.distil.decode import opened
from moe.distil.perplexity import compare
from moe.distil.prose import measured_texts
from moe.preset import PRESETS, preset_adapter, preset_source, smollm2_file
from moe.split import split

TARGET_RATIO, TARGET_SKEW = 1.10, 1.3


@benchmark
@click.option("--texts", type=PRESENT, help="Folder of the texts. [default: next to the project]")
@click.option("--tokens", type=AT_LEAST_1, default=4096, help="Of each kind of text.")
@click.option("--adapter", type=PRESENT, help="Another adapter file than the preset's own.")
@click.option("--threads", type=AT_LEAST_1, default=1, help="Threads that compute.")
def main(texts: Path | None, tokens: int, adapter: Path | None, threads: int) -> None:
    torch.set_num_threads(threads)
    preset = PRESETS["smollm2"]
    path = adapter or preset_adapter(preset, preset.experts, preset.top_k, "neurons")
    if path is None:
        raise click.ClickException("The preset has no adapter: `smoe pipeline distil smollm2` makes one.")
    trained = load_adapter(path)
    kinds = measured_texts(texts)
    with tempfile.TemporaryDirectory() as place, progress(1.0, "split") as show:
        folder = Path(place) / "smollm2"
        split(preset_source(preset, None, None, 0), folder, "smollm2", trained.experts, adapter=path)
        dense, tokenizer, _ = opened(smollm2_file())
        result = compare(folder, dense, tokenizer, kinds, tokens=tokens, progress=lambda done: show("perplexity", done))
    heads = ("kind", "tokens", "dense", "sparse", "ratio", "95 % interval")
    rows = [
        (kind, row["tokens"], row["dense"], row["sparse"], row["ratio"], f"{row['ratio_low']} to {row['ratio_high']}")
        for kind, row in result["kinds"].items()
    ]
    print_table("perplexity", heads, rows, stdout=True)
    print(f"load, busiest/mean: {result['skew']} over layers {trained.layers}: {result['skew_per_layer']}")
    print_result(
        {
            **result,
            "layers": trained.layers,
            "top_k": trained.router.top_k,
            "experts": trained.experts,
            "adapter_bytes": path.stat().st_size,
            "ratio_met": result["ratio"] <= TARGET_RATIO,
            "skew_met": result["skew"] >= TARGET_SKEW,
        },
        seed=0,
    )


if __name__ == "__main__":
    main()
