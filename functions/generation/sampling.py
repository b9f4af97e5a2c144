"""The next token from its logits: by what a request asks for, and the same whatever else is in the batch.

In vLLM's order: biases and penalties on the logits, temperature, ``top_k``, ``top_p``, then one draw. Temperature 0
takes the largest. Penalties: first transformers', ``logit /= repetition`` where it is above 0, else ``logit *=
repetition``, of tokens that the prompt has or that were generated; then OpenAI's, ``logit -= count * frequency + (count
> 0) * presence``, counted over the tokens that were generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``top_k`` 0 and ``top_p`` 1 leave all tokens; ``logit_bias`` by token id."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token; and where they were asked for its log probability, the likeliest tokens' by id, best first, and the
    experts of the pass that it was chosen after, for each layer those that its router chose."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    experts: Sequence[Sequence[int]] = ()


class Sampler:
    """The choices of one text, with a generator of its own."""

    def __init__(self, sampling: Sampling, logprobs: int | None = None, prompt: Sequence[int] = ()) -> None:
        """``logprobs``: how many of the likeliest tokens are reported next to the chosen one; None: nothing is.
        ``prompt``: its token ids, for ``repetition_penalty``."""
        self._sampling = sampling
        self._logprobs = logprobs
        self._counts: Counter[int] = Counter()
        self._bias = (torch.tensor(list(sampling.logit_bias)), torch.tensor(list(sampling.logit_bias.values())))
        repeats = sampling.repetition_penalty != 1.0
        self._prompt = torch.tensor(list(set(prompt)) if repeats else [], dtype=torch.int64)
        self._changes = bool(repeats or sampling.frequency_penalty or sampling.presence_penalty or sampling.logit_bias)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    @property
    def greedy(self) -> bool:
        """Whether each token is the likeliest by the model alone, and nothing else is asked for."""
        return self._sampling.temperature == 0.0 and self._logprobs is None and not self._changes

    def choose(self, logits: Tensor | int) -> Chosen:
        """The next token from ``logits [vocab]``, or the likeliest one as it is known; it counts for later
        penalties."""
        if isinstance(logits, int):
            return Chosen(logits)
        s = self._sampling
        with torch.inference_mode():
            scores = self._adjusted(logits.float())
            token = int(torch.argmax(scores)) if s.temperature == 0.0 else self._draw(_tempered(scores, s.temperature))
            self._counts[token] += 1
            if self._logprobs is None:
                return Chosen(token)
            return logprobs_of(scores[None], [token], self._logprobs)[0]

    def _adjusted(self, logits: Tensor) -> Tensor:
        s = self._sampling
        if not self._changes:
            return logits
        scores = logits.clone()
        if s.logit_bias:
            tokens, values = self._bias
            scores[tokens] += values
        ids = torch.tensor(list(self._counts), dtype=torch.int64)
        if s.repetition_penalty != 1.0:
            seen_ids = torch.cat([self._prompt, ids])  # one that is in both gets the same number twice
            seen_scores, p = scores[seen_ids], s.repetition_penalty
            scores[seen_ids] = torch.where(seen_scores > 0, seen_scores / p, seen_scores * p)
        if s.frequency_penalty or s.presence_penalty:
            counts = torch.tensor(list(self._counts.values()), dtype=torch.float32)
            scores[ids] -= counts * s.frequency_penalty + s.presence_penalty
        return scores

    def _draw(self, scores: Tensor) -> int:
        s = self._sampling
        if 0 < s.top_k < scores.shape[0]:
            scores = torch.where(scores < torch.topk(scores, s.top_k).values[-1], -torch.inf, scores)
        probabilities = torch.softmax(scores, -1)
        if s.top_p < 1.0:  # the fewest tokens that together have top_p; the likeliest always
            ordered, places = torch.sort(probabilities, descending=True, stable=True)
            ordered[ordered.cumsum(0) - ordered >= s.top_p] = 0.0
            probabilities = torch.zeros_like(probabilities).index_copy_(0, places, ordered)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def _tempered(scores: Tensor, temperature: float) -> Tensor:
    """``scores / temperature`` up to one shift; the largest becomes 0, so that no tiny temperature overflows it."""
    return (scores - scores.max()) / temperature


def logprobs_of(scores: Tensor, tokens: Sequence[int], count: int) -> list[Chosen]:
    """Each of ``tokens`` with its log probability under its row of ``scores [tokens, vocab]`` and the ``count``
    likeliest tokens'."""
    with torch.inference_mode():
        logs = torch.log_softmax(scores.float(), -1)
        chosen_logs = logs.gather(1, torch.tensor(tokens, dtype=torch.int64)[:, None])[:, 0].tolist()
        best = torch.topk(logs, min(count, logs.shape[1]), dim=1)
        tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            Chosen(token, logprob, tuple(zip(*top, strict=True)))
            for token, logprob, top in zip(tokens, chosen_logs, tops, strict=True)
        ]
