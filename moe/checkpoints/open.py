"""The reader of a checkpoint, chosen by its ``model_type``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from moe.checkpoints.bert import ROBERTA, Bert2BertReader, BertReader
from moe.checkpoints.deepseek import DeepseekReader
from moe.checkpoints.gpt2 import Gpt2Reader
from moe.checkpoints.gpt_oss import GptOssReader
from moe.checkpoints.granite import GraniteReader
from moe.checkpoints.llama import LlamaReader
from moe.checkpoints.reader import DenseReader, NativeReader
from moe.checkpoints.rope import RopeReader
from moe.checkpoints.source import FolderSource, Source
from moe.errors import CheckpointError

DENSE: dict[str, Callable[[Source], DenseReader]] = {
    "bert": BertReader,
    **dict.fromkeys((*ROBERTA, "distilbert"), BertReader),
    "gpt2": Gpt2Reader,
    "encoder-decoder": Bert2BertReader,
    "llama": LlamaReader,
    "mistral": LlamaReader,
    "qwen2": LlamaReader,
    "qwen3": LlamaReader,
}
NATIVE: dict[str, Callable[[Source], NativeReader]] = {
    "mixtral": RopeReader,
    "qwen2_moe": RopeReader,
    "qwen3_moe": RopeReader,
    "olmoe": RopeReader,
    "granitemoe": GraniteReader,
    "phimoe": RopeReader,
    "glm4_moe": DeepseekReader,
    "gpt_oss": GptOssReader,
    "deepseek_v2": DeepseekReader,
    "deepseek_v3": DeepseekReader,
}


OTHER_HEADS = tuple(
    f"For{what}"
    for what in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice", "MaskedLM",
                 "NextSentencePrediction", "PreTraining")
)  # fmt: skip


def open_source(path: str | Path) -> Source:
    """A Hugging Face folder, or a GGUF file. Raises CheckpointError."""
    if Path(path).is_file():
        from moe.checkpoints.gguf import GgufSource  # whoever has a folder needs no reader of GGUF

        return GgufSource(path)
    return FolderSource(path)


def is_dense(source: Source) -> bool:
    """Whether the checkpoint has to be converted. Raises CheckpointError for an unknown ``model_type``."""
    kind = source.config.get("model_type")
    if kind in DENSE:
        return True
    if kind in NATIVE:
        return False
    families, names = ", ".join([*DENSE, *NATIVE]), source.config.get("architectures")
    architecture = f"architecture {names[0]!r}, " if isinstance(names, list) and names else ""
    raise CheckpointError(
        f"{source.where}: {architecture}model_type {kind!r} is not supported; supported are {families}; "
        "docs/models.md states what a family needs."
    )


def check_experts(source: Source, experts: int | None) -> None:
    """Raises CheckpointError where another number of ``experts`` a layer is asked of a mixture than it has."""
    if experts is None or is_dense(source):
        return
    trained = open_native(source).experts
    if experts != trained:
        raise CheckpointError(
            f"{source.where}: this checkpoint was trained with {trained} experts a layer, not {experts}; --experts is "
            "for dense models."
        )


def head_left_out(source: Source) -> str | None:
    """The checkpoint's architecture where it has a head that no pipeline has, such as a classifier."""
    names = source.config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return name if name.endswith(OTHER_HEADS) else None


def open_dense(source: Source) -> DenseReader:
    return DENSE[cast("str", source.config["model_type"])](source)


def open_native(source: Source) -> NativeReader:
    return NATIVE[cast("str", source.config["model_type"])](source)
