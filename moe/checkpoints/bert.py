"""Encoders (BERT, RoBERTa and its kin, DistilBERT), for embeddings, and Bert2Bert, both of whose sides are BERT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moe.checkpoints.reader import DenseFfn, NodeTensors, first_of
from moe.checkpoints.source import Fields, FolderSource, Source, read_json
from moe.errors import CheckpointError
from moe.manifest import Family, Task

ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""One architecture under several names: positions are counted from the padding token's, and padding has a place."""


@dataclass(frozen=True)
class Names:
    """Where a layer's parts lie in a checkpoint. ``%d`` is the layer."""

    layer: str
    qkv: tuple[str, str, str]
    out: str
    attention_norm: str
    w_in: str
    w_out: str
    norm: str


BERT = Names(
    "encoder.layer.%d.",
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
DISTILBERT = Names(
    "transformer.layer.%d.",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)


def numbers_of(config: Mapping[str, Any], where: str, *types: str, decoder: bool) -> dict[str, Any]:
    """The family's numbers from a configuration of one of ``types``. Raises CheckpointError for anything not
    honoured."""
    fields = Fields(config, where)
    roberta = fields.only("model_type", *types) in ROBERTA
    fields.only("position_embedding_type", "absolute")
    fields.only("is_decoder", decoder)
    fields.only("add_cross_attention", decoder)
    numbers: dict[str, Any] = {
        "vocab_size": fields.count("vocab_size", 30522),
        "hidden_size": fields.count("hidden_size", 768),
        "layers": fields.count("num_hidden_layers", 12),
        "heads": fields.count("num_attention_heads", 12),
        "ffn_size": fields.count("intermediate_size", 3072),
        "activation": fields.activation("hidden_act", "gelu"),
        "eps": fields.number("layer_norm_eps", 1e-12),
        "max_positions": fields.count("max_position_embeddings", 512),
        "token_types": fields.count("type_vocab_size", 2),
    }
    if roberta:
        padding = fields.get("pad_token_id", 1)
        if not isinstance(padding, int) or not 0 <= padding < numbers["max_positions"] - 1:
            raise CheckpointError(f"{where}: pad_token_id must be a token id below max_position_embeddings - 1.")
        numbers |= {"padding_id": padding, "max_positions": numbers["max_positions"] - padding - 1}
    return _proved(fields, numbers)


def distilbert_numbers(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """As ``numbers_of``, under DistilBERT's own keys; it has no token types."""
    fields = Fields(config, where)
    fields.only("model_type", "distilbert")
    fields.flag("sinusoidal_pos_embds", False)  # how the stored positions began
    numbers: dict[str, Any] = {
        "vocab_size": fields.count("vocab_size", 30522),
        "hidden_size": fields.count("dim", 768),
        "layers": fields.count("n_layers", 6),
        "heads": fields.count("n_heads", 12),
        "ffn_size": fields.count("hidden_dim", 3072),
        "activation": fields.activation("activation", "gelu"),
        "eps": 1e-12,
        "max_positions": fields.count("max_position_embeddings", 512),
        "token_types": 1,
    }
    return _proved(fields, numbers)


def _proved(fields: Fields, numbers: dict[str, Any]) -> dict[str, Any]:
    fields.flag("tie_word_embeddings", True)
    fields.finish(HARMLESS)
    if numbers["hidden_size"] % numbers["heads"]:
        raise CheckpointError(f"{fields.where}: the hidden size must be a multiple of the number of attention heads.")
    return numbers


HARMLESS = frozenset(("dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_", "output_past"))


class BertStack:
    """One stack of BERT layers in a checkpoint; ``prefix`` stands before ``embeddings`` and the layers."""

    def __init__(
        self, source: Source, prefix: str, numbers: Mapping[str, Any], *, decoder: bool, names: Names = BERT
    ) -> None:
        self.source, self.prefix, self.numbers, self.decoder, self.names = source, prefix, numbers, decoder, names

    def _layer(self, layer: int) -> str:
        return self.prefix + self.names.layer % layer

    def embedding(self) -> NodeTensors:
        n, name = self.numbers, f"{self.prefix}embeddings."
        d = n["hidden_size"]
        get = self.source.get
        first = n.get("padding_id", 0)  # the places before it belong to nothing
        rows = n["max_positions"] + (first + 1 if "padding_id" in n else 0)
        positions = get(f"{name}position_embeddings.weight", rows, d)[first:]
        if self.names is not DISTILBERT:
            positions = positions + get(f"{name}token_type_embeddings.weight", n["token_types"], d)[0]
        return {
            "embed.words": get(f"{name}word_embeddings.weight", n["vocab_size"], d),
            "embed.positions": positions,
            **self._norm("embed.norm", f"{name}LayerNorm"),
        }

    def attention(self, layer: int) -> NodeTensors:
        """Self-attention, and cross-attention of a decoder."""
        d, name = self.numbers["hidden_size"], self._layer(layer)
        tensors = {
            **self._stacked("attention.qkv", name, *self.names.qkv),
            **self._linear("attention.out", f"{name}{self.names.out}", d, d),
            **self._norm("attention.norm", f"{name}{self.names.attention_norm}"),
        }
        if self.decoder:
            tensors |= self._linear("cross.q", f"{name}crossattention.self.query", d, d)
            tensors |= self._stacked("cross.kv", f"{name}crossattention.self.", "key", "value")
            tensors |= self._linear("cross.out", f"{name}crossattention.output.dense", d, d)
            tensors |= self._norm("cross.norm", f"{name}crossattention.output.LayerNorm")
        return tensors

    def finish(self, layer: int) -> NodeTensors:
        """What follows the experts' sum of ``layer``."""
        d, name = self.numbers["hidden_size"], self._layer(layer)
        bias = self.source.get(f"{name}{self.names.w_out}.bias", d)
        return {"finish.bias": bias, **self._norm("finish.norm", f"{name}{self.names.norm}")}

    def ffn(self, layer: int) -> DenseFfn:
        d, inner, name = self.numbers["hidden_size"], self.numbers["ffn_size"], self._layer(layer)
        return DenseFfn(
            self.source.get(f"{name}{self.names.w_in}.weight", inner, d),
            self.source.get(f"{name}{self.names.w_in}.bias", inner),
            self.source.get(f"{name}{self.names.w_out}.weight", d, inner),
        )

    def language_head(self, name: str) -> NodeTensors:
        """``name`` is the head's prefix (``decoder.cls.predictions.``); the vocabulary may be tied to the
        words.
        """
        n = self.numbers
        d, vocab = n["hidden_size"], n["vocab_size"]
        words = f"{self.prefix}embeddings.word_embeddings.weight"
        weight, bias = f"{name}decoder.weight", f"{name}decoder.bias"
        return {
            **self._linear("head.dense", f"{name}transform.dense", d, d),
            **self._norm("head.norm", f"{name}transform.LayerNorm"),
            "head.vocabulary.weight": self.source.get(weight if self.source.has(weight) else words, vocab, d),
            "head.vocabulary.bias": self.source.get(bias if self.source.has(bias) else f"{name}bias", vocab),
        }

    def _linear(self, ours: str, theirs: str, inputs: int, outputs: int) -> NodeTensors:
        return {
            f"{ours}.weight": self.source.get(f"{theirs}.weight", outputs, inputs),
            f"{ours}.bias": self.source.get(f"{theirs}.bias", outputs),
        }

    def _stacked(self, ours: str, theirs: str, *parts: str) -> NodeTensors:
        d = self.numbers["hidden_size"]
        return {
            f"{ours}.weight": torch.cat([self.source.get(f"{theirs}{part}.weight", d, d) for part in parts]),
            f"{ours}.bias": torch.cat([self.source.get(f"{theirs}{part}.bias", d) for part in parts]),
        }

    def _norm(self, ours: str, theirs: str) -> NodeTensors:
        d = self.numbers["hidden_size"]
        old = not self.source.has(f"{theirs}.weight")  # the first BERT checkpoints say gamma and beta
        return {
            f"{ours}.weight": self.source.get(f"{theirs}.{'gamma' if old else 'weight'}", d),
            f"{ours}.bias": self.source.get(f"{theirs}.{'beta' if old else 'bias'}", d),
        }


class BertReader:
    """An encoder that answers sentence embeddings: BERT, RoBERTa or DistilBERT."""

    task: Task = "embedding"

    def __init__(self, source: Source) -> None:
        kind = source.config.get("model_type")
        self.family: Family = "roberta" if kind in ROBERTA else "distilbert" if kind == "distilbert" else "bert"
        names = BERT
        if self.family == "distilbert":
            names, numbers = DISTILBERT, distilbert_numbers(source.config, source.where)
        else:
            numbers = numbers_of(source.config, source.where, "bert", *ROBERTA, decoder=False)
        prefix = first_of(source, "embeddings.word_embeddings.weight", "", f"{self.family}.")
        self.stack = BertStack(source, prefix, numbers, decoder=False, names=names)
        pooling, normalise = sentence_settings(source)
        self.architecture = {**numbers, "pooling": pooling, "normalise_embedding": normalise}
        self.layers: int = numbers["layers"]
        self.special: dict[str, int] = {}
        self.max_tokens = min(numbers["max_positions"], longest_sentence(source))

    def segment(self, index: int) -> NodeTensors:
        tensors = self.stack.finish(index - 1) if index else self.stack.embedding()
        return tensors | (self.stack.attention(index) if index < self.layers else {})

    def ffn(self, layer: int) -> DenseFfn:
        return self.stack.ffn(layer)

    def activation(self, layer: int) -> str:
        return str(self.architecture["activation"])


def sentence_settings(source: Source) -> tuple[str, bool]:
    """Pooling and normalisation from sentence-transformers files next to the model; else mean and none."""
    if not isinstance(source, FolderSource):
        return "mean", False
    normalise = False
    modules = source.folder / "modules.json"
    if modules.is_file():
        kinds = sentence_modules(modules)
        normalise = "Normalize" in kinds
    path = source.folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean", normalise
    modes = {key for key, value in read_json(path).items() if key.startswith("pooling_mode_") and value is True}
    if modes == {"pooling_mode_cls_token"}:
        return "cls", normalise
    if modes == {"pooling_mode_mean_tokens"}:
        return "mean", normalise
    raise CheckpointError(f"{path}: pooling {sorted(modes)} is not supported, only mean or cls.")


def sentence_modules(path: Path) -> list[str]:
    """Steps of a sentence-transformers model, by their classes. Raises CheckpointError for others than supported."""
    try:
        steps = [str(step["type"]).rsplit(".", 1)[-1] for step in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: is no list of modules with types ({error!r}).") from error
    for step in steps:
        if step not in ("Transformer", "Pooling", "Normalize"):
            raise CheckpointError(f"{path}: module {step!r} is not supported, only Transformer, Pooling and Normalize.")
    return steps


def longest_sentence(source: Source) -> int:
    """``max_seq_length`` of sentence-transformers, where given."""
    if isinstance(source, FolderSource):
        path: Path = source.folder / "sentence_bert_config.json"
        if path.is_file():
            return Fields(read_json(path), str(path)).count("max_seq_length", 2**31)
    return 2**31


class Bert2BertReader:
    """A BERT encoder and a BERT decoder with cross-attention and language head."""

    family: Family = "bert2bert"
    task: Task = "seq2seq-lm"

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        fields.only("model_type", "encoder-decoder")
        fields.only("is_encoder_decoder", True)
        encoder, decoder = fields.get("encoder", {}), fields.get("decoder", {})
        fields.only("vocab_size", None, decoder.get("vocab_size"))
        fields.flag("tie_word_embeddings", False)
        fields.only("tie_encoder_decoder", False)
        self.encoder = BertStack(
            source, "encoder.", numbers_of(encoder, f"{source.where} (encoder)", "bert", decoder=False), decoder=False
        )
        self.decoder = BertStack(
            source,
            "decoder.bert.",
            numbers_of(decoder, f"{source.where} (decoder)", "bert", decoder=True),
            decoder=True,
        )
        e, d = self.encoder.numbers, self.decoder.numbers
        if e["hidden_size"] != d["hidden_size"]:
            raise CheckpointError(f"{source.where}: encoder and decoder must have the same hidden_size.")
        start = fields.token("decoder_start_token_id", d["vocab_size"])
        end = fields.token("eos_token_id", d["vocab_size"])
        fields.finish()
        self.architecture = {"encoder": dict(e), "decoder": dict(d)}
        self.bridge: int = e["layers"]
        self.layers: int = e["layers"] + d["layers"]
        self.max_tokens: int = min(e["max_positions"], d["max_positions"])
        self.special = {key: value for key, value in (("decoder_start", start), ("eos", end)) if value is not None}

    def _place(self, layer: int) -> tuple[BertStack, int]:
        return (self.encoder, layer) if layer < self.bridge else (self.decoder, layer - self.bridge)

    def segment(self, index: int) -> NodeTensors:
        tensors: NodeTensors = {}
        if index:
            stack, layer = self._place(index - 1)
            tensors |= stack.finish(layer)
        stack, layer = self._place(index)
        if index in (0, self.bridge):
            tensors |= stack.embedding()
        if index == self.layers:
            return tensors | self.decoder.language_head("decoder.cls.predictions.")
        return tensors | stack.attention(layer)

    def ffn(self, layer: int) -> DenseFfn:
        stack, place = self._place(layer)
        return stack.ffn(place)

    def activation(self, layer: int) -> str:
        return str(self._place(layer)[0].numbers["activation"])
