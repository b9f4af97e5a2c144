"""BERT checkpoints (``model_type`` bert), for embeddings, and Bert2Bert's (encoder-decoder, both sides BERT)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from moe.checkpoints.reader import DenseFfn, NodeTensors, first_of
from moe.checkpoints.source import Fields, FolderSource, Source, read_json
from moe.errors import CheckpointError
from moe.manifest import Family, Task


def numbers_of(config: Mapping[str, Any], where: str, *, decoder: bool) -> dict[str, Any]:
    """The family's numbers from a BERT configuration. Raises CheckpointError for anything not honoured."""
    fields = Fields(config, where)
    fields.only("model_type", "bert")
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
    fields.flag("tie_word_embeddings", True)
    fields.finish()
    if numbers["hidden_size"] % numbers["heads"]:
        raise CheckpointError(f"{where}: hidden_size must be a multiple of num_attention_heads.")
    return numbers


class BertStack:
    """One stack of BERT layers in a checkpoint; ``prefix`` stands before ``embeddings`` and ``encoder``."""

    def __init__(self, source: Source, prefix: str, numbers: Mapping[str, Any], *, decoder: bool) -> None:
        self.source, self.prefix, self.numbers, self.decoder = source, prefix, numbers, decoder

    def embedding(self) -> NodeTensors:
        n, name = self.numbers, f"{self.prefix}embeddings."
        d = n["hidden_size"]
        get = self.source.get
        positions = get(f"{name}position_embeddings.weight", n["max_positions"], d)
        types = get(f"{name}token_type_embeddings.weight", n["token_types"], d)
        return {
            "embed.words": get(f"{name}word_embeddings.weight", n["vocab_size"], d),
            "embed.positions": positions + types[0],
            **self._norm("embed.norm", f"{name}LayerNorm"),
        }

    def attention(self, layer: int) -> NodeTensors:
        """Self-attention, and cross-attention of a decoder."""
        d, name = self.numbers["hidden_size"], f"{self.prefix}encoder.layer.{layer}."
        tensors = {
            **self._stacked("attention.qkv", f"{name}attention.self.", "query", "key", "value"),
            **self._linear("attention.out", f"{name}attention.output.dense", d, d),
            **self._norm("attention.norm", f"{name}attention.output.LayerNorm"),
        }
        if self.decoder:
            tensors |= self._linear("cross.q", f"{name}crossattention.self.query", d, d)
            tensors |= self._stacked("cross.kv", f"{name}crossattention.self.", "key", "value")
            tensors |= self._linear("cross.out", f"{name}crossattention.output.dense", d, d)
            tensors |= self._norm("cross.norm", f"{name}crossattention.output.LayerNorm")
        return tensors

    def finish(self, layer: int) -> NodeTensors:
        """What follows the experts' sum of ``layer``."""
        d, name = self.numbers["hidden_size"], f"{self.prefix}encoder.layer.{layer}.output."
        bias = self.source.get(f"{name}dense.bias", d)
        return {"finish.bias": bias, **self._norm("finish.norm", f"{name}LayerNorm")}

    def ffn(self, layer: int) -> DenseFfn:
        d, inner, name = (
            self.numbers["hidden_size"],
            self.numbers["ffn_size"],
            f"{self.prefix}encoder.layer.{layer}.",
        )
        return DenseFfn(
            self.source.get(f"{name}intermediate.dense.weight", inner, d),
            self.source.get(f"{name}intermediate.dense.bias", inner),
            self.source.get(f"{name}output.dense.weight", d, inner),
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
    """A BERT encoder that answers sentence embeddings."""

    family: Family = "bert"
    task: Task = "embedding"

    def __init__(self, source: Source) -> None:
        numbers = numbers_of(source.config, source.where, decoder=False)
        prefix = first_of(source, "embeddings.word_embeddings.weight", "", "bert.")
        self.stack = BertStack(source, prefix, numbers, decoder=False)
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
        normalise = ".Normalize" in modules.read_text(encoding="utf-8")
    path = source.folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean", normalise
    modes = {key for key, value in read_json(path).items() if key.startswith("pooling_mode_") and value is True}
    if modes == {"pooling_mode_cls_token"}:
        return "cls", normalise
    if modes == {"pooling_mode_mean_tokens"}:
        return "mean", normalise
    raise CheckpointError(f"{path}: pooling {sorted(modes)} is not supported, only mean or cls.")


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
            source, "encoder.", numbers_of(encoder, f"{source.where} (encoder)", decoder=False), decoder=False
        )
        self.decoder = BertStack(
            source,
            "decoder.bert.",
            numbers_of(decoder, f"{source.where} (decoder)", decoder=True),
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
