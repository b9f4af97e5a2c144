"""Pipelines of 12 functions for live runs in which experts need many replicas: two layers of four experts each.

The default pipeline has 32 functions, so on two cores most of what a run costs is one replica of each. Here eight
experts and three segments are left. Of the first two layers of MiniLM weights, experts and routers are the default
pipeline's own, so tokens are shared among experts as real ones are. With ``--paper-experts`` layers and experts have
the paper's shape (768 × 3072) and seeded weights: a call computes for milliseconds, longer than a limit's quota.
Answers are good for load and not for meaning.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import click
from safetensors import safe_open
from safetensors.torch import save_file

from moe.checkpoints.source import SeededSource
from moe.manifest import Manifest
from moe.manifest_proof import sha256_of
from moe.preset import PRESETS, minilm_folder, preset_adapter, preset_tokenizer, seeded_config
from moe.split import split

LAYERS = 2
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def shortened(source: Path, out: Path) -> None:
    """The checkpoint ``source`` without the layers from ``LAYERS`` on, in the folder ``out``."""
    shutil.copytree(source, out)
    config = json.loads((source / CONFIG).read_text())
    (out / CONFIG).write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
    _keep(source / WEIGHTS, out / WEIGHTS, "layer", {})


def shortened_adapter(source: Path, checkpoint: Path, out: Path) -> None:
    """The adapter ``source`` for the same layers, as one of the checkpoint in the folder ``checkpoint``."""
    _keep(source, out, "layers", {"base_sha256": sha256_of(checkpoint / WEIGHTS)})


def _keep(source: Path, out: Path, word: str, changes: dict[str, str]) -> None:
    """Tensors whose name has no layer, ``word`` and then its number, or one that is kept; ``changes`` of the adapter's
    own metadata."""
    with safe_open(str(source), framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name).contiguous() for name in file.keys() if _layer(name, word) < LAYERS}  # noqa: SIM118 (no mapping)
    if changes:
        metadata["smoe"] = json.dumps(json.loads(metadata["smoe"]) | changes)
    out.unlink(missing_ok=True)
    save_file(tensors, str(out), metadata)


def _layer(name: str, word: str) -> int:
    parts = name.split(".")
    return int(parts[parts.index(word) + 1]) if word in parts else 0


def paper_experts(out: Path) -> Manifest:
    """Two layers of BERT-base's width, each with four whole feed-forward networks as experts, in the folder ``out``."""
    source = SeededSource({**seeded_config("bert", 768), "num_hidden_layers": LAYERS}, 0)
    tokenizer = preset_tokenizer(PRESETS["bert-4"])
    return split(source, out, "paper-experts", experts=4, top_k=2, method="full", tokenizer=tokenizer)


def minilm_experts(out: Path) -> Manifest:
    """The default pipeline's first two layers, in the folder ``out``. Raises ClickException."""
    preset = PRESETS["minilm"]
    whole = preset_adapter(preset, preset.experts, preset.top_k, "neurons")
    if whole is None:
        raise click.ClickException("the default pipeline's adapter is not here")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, adapter = Path(folder) / "checkpoint", Path(folder) / "adapter.safetensors"
        shortened(minilm_folder(), checkpoint)
        shortened_adapter(whole, checkpoint, adapter)
        return split(checkpoint, out, "two", adapter=adapter)


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--paper-experts", "paper", is_flag=True, help="Experts of 768 × 3072 instead of MiniLM's.")
def main(out: Path, paper: bool) -> None:
    manifest = paper_experts(out) if paper else minilm_experts(out)
    print(f"{out}: {len(manifest.segments)} segments and {len(manifest.nodes) - len(manifest.segments)} experts")


if __name__ == "__main__":
    main()
