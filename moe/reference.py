"""The whole pipeline in one process, from the same programs that run inside functions.

``drive`` is the pass itself over any way of calling a node; ``WholeModel`` calls the programs directly. It is
the reference that served pipelines are compared with, and the baseline they are measured against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from moe.errors import ProgramInputError, TextError
from moe.families.routing import dispatch
from moe.inputs import CACHED
from moe.manifest import Manifest, load
from moe.names import expert_id, segment_id
from moe.runtime import load_node
from moe.tokenize import TextTokenizer

COLDEST = 1e-6
"""Temperatures below it take the likeliest token: float32 has no quotient for some of them."""

Tensors = dict[str, Tensor]
NodeCall = Callable[[str, Tensors, bool], Tensors]
"""Runs a node: its id, its input tensors, all_logits; returns its reply."""
Trace = Callable[[str, Tensors, Tensors], None]
"""Sees every call of a pass: node id, input, reply."""


def drive(manifest: Manifest, call: NodeCall, inputs: Mapping[str, Tensor], all_logits: bool = False) -> Tensors:
    """One pass over the pipeline; returns the last segment's reply.

    ``inputs``: ``token_ids [T] int64``, ``lengths [B] int64``; an encoder-decoder also takes
    ``decoder_token_ids`` and ``decoder_lengths``, a decoder whose segments keep keys and values
    ``sequences``, ``starts`` and ``parents``.
    """
    lengths = inputs["lengths"]
    cached = {name: inputs[name] for name in CACHED & inputs.keys()}
    reply = call(segment_id(0), {"token_ids": inputs["token_ids"], "lengths": lengths, **cached}, all_logits)
    memory: Tensors = {}
    for layer in range(manifest.layers):
        x = reply.get("x", reply["residual"])  # [T, d]
        groups = dispatch(reply["expert_ids"], reply["gates"])
        parts = zip(groups.experts, groups.scatter(x), strict=True)
        outputs = [call(expert_id(layer, expert), {"x": part}, False)["y"] for expert, part in parts]
        hidden = groups.combine(reply["residual"], outputs)  # [T, d]
        segment = manifest.segments[layer + 1]
        tensors = {"hidden": hidden, "lengths": lengths, **cached}
        if "token_ids" in segment.inputs:  # the encoder ends here and the decoder begins
            memory = {"memory_lengths": lengths}
            lengths = inputs["decoder_lengths"]
            tensors = {
                "hidden": hidden,
                **memory,
                "token_ids": inputs["decoder_token_ids"],
                "lengths": lengths,
            }
        elif "memory" in segment.inputs:
            tensors |= memory
        reply = call(segment.id, tensors, all_logits)
        if "memory" in reply:
            memory["memory"] = reply["memory"]
    return reply


class WholeModel:
    """All nodes of a pipeline folder, loaded once. Safe to call from several threads."""

    def __init__(self, directory: str | Path, *, verify: bool = False, trace: Trace | None = None) -> None:
        self.directory = Path(directory)
        self.manifest = load(self.directory, verify=verify)
        self.programs = {node.id: load_node(self.directory, self.manifest, node.id) for node in self.manifest.nodes}
        self.trace = trace
        settings = self.manifest.tokenizer
        self._tokenizer = None if settings is None else TextTokenizer(self.directory, settings)

    @property
    def tokenizer(self) -> TextTokenizer:
        """Raises TextError for a pipeline without one."""
        if self._tokenizer is None:
            raise TextError(f"Pipeline {self.manifest.name} has no tokenizer; give it token ids.")
        return self._tokenizer

    def forward(self, tensors: Mapping[str, Tensor], all_logits: bool = False) -> Tensors:
        """One pass over ``[tokens, …]`` tensors (see ``drive``). Raises ProgramInputError."""
        with torch.inference_mode():
            return drive(self.manifest, self._call, tensors, all_logits)

    def _call(self, node_id: str, tensors: Tensors, all_logits: bool) -> Tensors:
        reply = self.programs[node_id].run(tensors, all_logits=all_logits)
        if self.trace is not None:
            self.trace(node_id, tensors, reply)
        return reply

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Sentence embeddings ``[B, d]`` in one packed pass. Raises TextError, ProgramInputError."""
        return self.embed_ids(self.tokenizer.encode_all(texts))

    def embed_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Sentence embeddings ``[B, d]`` of tokenised texts."""
        self._need("embedding")
        return self.forward(pack(ids))["embedding"]

    def logits(self, texts: Sequence[str]) -> Tensor:
        """Next-token logits ``[B, vocab]``, of encoder-decoders after the start token. Raises TextError."""
        return self.logits_ids(self.tokenizer.encode_all(texts))

    def logits_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        answers: Sequence[Sequence[int]] | None = None,
        all_tokens: bool = False,
    ) -> Tensor:
        """Next-token logits ``[B, vocab]`` of tokenised texts; with ``all_tokens`` those of each token, ``[T, vocab]``.

        ``answers``: token ids of the answers so far, for encoder-decoders; default the start token.
        """
        self._need("causal-lm", "seq2seq-lm")
        tensors = pack(ids)
        if self.manifest.task == "seq2seq-lm":
            tokenizer = self.manifest.tokenizer
            start = [tokenizer.special.get("decoder_start", 0) if tokenizer else 0]
            decoder = pack([list(answer) for answer in answers] if answers is not None else [start] * len(ids))
            tensors |= {f"decoder_{name}": tensor for name, tensor in decoder.items()}
        return self.forward(tensors, all_tokens)["logits"]

    def _need(self, *tasks: str) -> None:
        if self.manifest.task not in tasks:
            raise ProgramInputError(
                f"Pipeline {self.manifest.name} does {self.manifest.task}, not {' or '.join(tasks)}."
            )


def pack(ids: Sequence[Sequence[int]]) -> Tensors:
    """Token ids of texts as ``token_ids [T]`` and ``lengths [B]``."""
    return {
        "token_ids": torch.tensor([token for text in ids for token in text], dtype=torch.int64),
        "lengths": torch.tensor([len(text) for text in ids], dtype=torch.int64),
    }


def choose(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """The next token from ``logits [vocab]``: the best, or one drawn from the softmax at ``temperature``."""
    if temperature < COLDEST:
        return int(torch.argmax(logits))
    scores = logits.float() / temperature
    if 0 < top_k < scores.shape[0]:
        scores = torch.where(scores < torch.topk(scores, top_k).values[-1], -torch.inf, scores)
    return int(torch.multinomial(torch.softmax(scores, -1), 1, generator=generator))
