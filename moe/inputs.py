"""What a node accepts: the checks made before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moe.errors import ProgramInputError
from moe.families.bert2bert import stack_of
from moe.manifest import Manifest, Node

CACHED = frozenset(("sequences", "starts", "parents"))
"""Inputs of a decoder's segment, all or none: whose keys and values are kept (``[B]`` ids), how many tokens of each the
segment has seen (``[B]``), the call then holds only the tokens after them; and for one that is new there, the id of the
one whose first ``starts`` tokens are its own (``[B]``, -1: none)."""


@dataclass(frozen=True, slots=True)
class InputRules:
    """Names, widths, dtype and bounds of one node's inputs. ``vocab_size`` and ``max_positions`` as of its
    stack.
    """

    node_id: str
    names: frozenset[str]
    widths: Mapping[str, int]
    dtype: torch.dtype
    vocab_size: int
    max_positions: int
    memory_positions: int
    caches: bool = False
    """Whether the node also takes ``CACHED``."""

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises ProgramInputError naming the first rule that ``tensors`` ``[tokens, …]`` break."""
        cached = self.caches and "sequences" in tensors
        if tensors.keys() != (self.names | CACHED if cached else self.names):
            missing, extra = sorted(self.names - tensors.keys()), sorted(tensors.keys() - self.names)
            what = f"misses {missing[0]}" if missing else f"has {extra[0]} too much"
            raise ProgramInputError(
                f"{self.node_id}: the call {what}; it takes exactly {', '.join(sorted(self.names))}."
            )
        for name, width in self.widths.items():
            self._matrix(name, tensors[name], width)
        if "lengths" not in self.names:
            return
        if "token_ids" in self.names:
            ids = tensors["token_ids"]
            if ids.dim() != 1 or ids.dtype != torch.int64:
                raise ProgramInputError(
                    f"{self.node_id}: token_ids is {list(ids.shape)} {ids.dtype}, allowed is [tokens] {torch.int64}."
                )
        tokens = tensors["token_ids"] if "token_ids" in self.names else tensors["hidden"]
        texts = self._lengths("lengths", tensors["lengths"], tokens, self.max_positions)
        if cached:
            self._past(tensors)
        if "memory_lengths" in self.names:
            memory = tensors["memory"] if "memory" in self.names else tensors["hidden"]
            others = self._lengths("memory_lengths", tensors["memory_lengths"], memory, self.memory_positions)
            if others != texts:
                raise ProgramInputError(
                    f"{self.node_id}: lengths has {texts} texts, memory_lengths {others}; they must be as many."
                )
        if "token_ids" in self.names:
            low, high = (int(bound) for bound in torch.aminmax(tokens))
            if low < 0 or high >= self.vocab_size:
                bad = low if low < 0 else high
                raise ProgramInputError(
                    f"{self.node_id}: token id {bad} is outside the vocabulary, 0 to {self.vocab_size - 1}."
                )

    def made_up(self, tokens: int) -> dict[str, Tensor]:
        """A call ``[tokens, …]`` that the node accepts: one text of so many tokens, or of as many as it takes."""
        if "lengths" in self.names:
            tokens = min(tokens, self.max_positions)
        sizes = dict.fromkeys(self.names, tokens)
        if "memory_lengths" in self.names:
            memory = "memory" if "memory" in self.names else "hidden"
            sizes[memory] = sizes["memory_lengths"] = min(tokens, self.memory_positions)
        made = {name: torch.zeros(sizes[name], width, dtype=self.dtype) for name, width in self.widths.items()}
        if "token_ids" in self.names:
            made["token_ids"] = torch.zeros(sizes["token_ids"], dtype=torch.int64)
        for name in self.names & {"lengths", "memory_lengths"}:
            made[name] = torch.tensor([sizes[name]])
        return made

    def _matrix(self, name: str, tensor: Tensor, width: int) -> None:
        if tensor.dim() != 2 or tensor.shape[1] != width or tensor.shape[0] < 1 or tensor.dtype != self.dtype:
            raise ProgramInputError(
                f"{self.node_id}: {name} is {list(tensor.shape)} {tensor.dtype}, "
                f"allowed is [1 or more, {width}] {self.dtype}."
            )

    def _lengths(self, name: str, lengths: Tensor, tokens: Tensor, longest: int) -> int:
        """Number of texts. ``tokens`` is what they count: a vector of ids or the rows of a matrix."""
        if lengths.dim() != 1 or lengths.dtype != torch.int64 or not 1 <= lengths.shape[0] <= tokens.shape[0]:
            raise ProgramInputError(
                f"{self.node_id}: {name} is {list(lengths.shape)} {lengths.dtype}, "
                f"allowed is [1 to {tokens.shape[0]}] {torch.int64}, one number for each text."
            )
        values: list[int] = lengths.tolist()
        if min(values) < 1 or max(values) > longest or sum(values) != tokens.shape[0]:
            raise ProgramInputError(
                f"{self.node_id}: {name} "
                f"{values[:8]}{'…' if len(values) > 8 else ''} must each be 1 to {longest} "
                f"and sum to the {tokens.shape[0]} tokens given."
            )
        return len(values)

    def _past(self, tensors: Mapping[str, Tensor]) -> None:
        lengths = tensors["lengths"]
        for name in ("parents", "sequences", "starts"):
            tensor = tensors[name]
            if tensor.shape != lengths.shape or tensor.dtype != torch.int64:
                raise ProgramInputError(
                    f"{self.node_id}: {name} is {list(tensor.shape)} {tensor.dtype}, allowed is {list(lengths.shape)} "
                    f"{torch.int64}, one number for each text."
                )
        ids: list[int] = tensors["sequences"].tolist()
        starts: list[int] = tensors["starts"].tolist()
        if len(set(ids)) != len(ids):
            raise ProgramInputError(f"{self.node_id}: sequences names one twice; a call holds each at most once.")
        ends = map(sum, zip(starts, lengths.tolist(), strict=True))
        if min(starts) < 0 or max(ends) > self.max_positions:
            raise ProgramInputError(
                f"{self.node_id}: starts must be 0 or more, and with lengths at most {self.max_positions}."
            )


def rules_of(manifest: Manifest, node: Node, dtype: torch.dtype) -> InputRules:
    """The rules of ``node``, from the manifest's numbers."""
    numbers = memory = manifest.architecture
    if manifest.family == "bert2bert":
        numbers, memory = stack_of(numbers, node.layer), numbers["encoder"]
    names = frozenset(node.inputs)
    widths: dict[str, int] = {name: numbers["hidden_size"] for name in ("hidden", "x", "memory") if name in names}
    return InputRules(
        node.id,
        names,
        widths,
        dtype,
        numbers["vocab_size"],
        numbers["max_positions"],
        memory["max_positions"],
        caches=manifest.task == "causal-lm" and node.kind == "segment",
    )
