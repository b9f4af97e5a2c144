"""Bert2Bert checkpoints (``model_type`` encoder-decoder, both sides BERT)."""

from __future__ import annotations

from moe.checkpoints.bert import BertStack, numbers_of
from moe.checkpoints.reader import DenseFfn, NodeTensors
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError
from moe.manifest import Family, Task


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
