"""Times of an instance fitted to iterations of a running one.

An iteration of t tokens, of which d texts decode, and parts of prompts from s to s + n::

    seconds = f(t) + text · (d + parts) + context · Σ their contexts + attention · Σ ((s + n)² - s²)

f rises and is linear between ``KNOTS``: it holds the reading of weights and the calls, which all tokens share, and what
each token adds, which is less the more there are. ``text`` is what is done text by text. A first token takes ``front``
more: the client's connection, the tokenizer, the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from functions.scheduling.predictor import Profile, fit_decode, fit_prefill
from simulation.generation.hardware import ALONE, Part

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
QUANTILES = 21


class FitError(ValueError):
    """The samples do not make a model."""


@dataclass(frozen=True)
class Sample:
    """What was measured: a lone prompt until its first token (``texts`` 0), or one iteration of ``texts`` decodes."""

    texts: int
    tokens: int
    """Tokens of the prompt, or of all texts together."""
    seconds: float


@dataclass(frozen=True)
class Measured:
    """An instance (:class:`simulation.generation.hardware.Times`). Seconds."""

    knots: tuple[int, ...]
    base_s: tuple[float, ...]
    """f at ``knots``."""
    text_s: float
    context_s: float
    attention_s: float
    front_s: float
    jitter: tuple[float, ...]
    """Quantiles, evenly from 0 to 1, of measured decode iterations over the model's."""
    chunk_tokens: int
    kv_tokens: int
    transfer_token_s: float = 0.0
    """Keys and values of one token to another instance."""
    slowdown: tuple[float, ...] = ALONE
    """Next to another instance on the same machine."""
    seed: int | None = None
    """None: iterations take what the model gives; else times ``jitter``, drawn."""

    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    def drawing(self, seed: int) -> Measured:
        """The same instance with jitter."""
        return replace(self, seed=seed)

    def iteration(self, decodes: int, context: int, parts: Sequence[Part]) -> float:
        """As in ``Times``."""
        tokens = decodes + sum(count for _, count in parts)
        seconds = (
            float(np.interp(tokens, self.knots, self.base_s))
            + self.text_s * (decodes + len(parts))
            + self.context_s * context
            + self.attention_s * sum((start + count) ** 2 - start**2 for start, count in parts)
        )
        if tokens > self.knots[-1]:
            slope = (self.base_s[-1] - self.base_s[-2]) / (self.knots[-1] - self.knots[-2])
            seconds += slope * (tokens - self.knots[-1])
        if self.seed is None:
            return seconds
        place = self._random.random() * (len(self.jitter) - 1)
        return seconds * float(np.interp(place, range(len(self.jitter)), self.jitter))

    def transfer_s(self, tokens: int) -> float:
        """As in ``Times``."""
        return tokens * self.transfer_token_s

    def prefill_s(self, tokens: int) -> float:
        """A lone prompt until its first token, without ``front_s``."""
        return sum(self.iteration(0, 0, [part]) for part in chunks(tokens, self.chunk_tokens))

    def profile(self, context: int = 200) -> Profile:
        """What a scheduler is given: prompts of 8 to 2,048 tokens, 1 to 32 texts of ``context`` tokens."""
        still = replace(self, seed=None)
        lengths, batches = [8 * 2**power for power in range(9)], [2**power for power in range(6)]
        return Profile(
            fit_prefill(lengths, [still.prefill_s(length) for length in lengths]),
            fit_decode([b * context for b in batches], [still.iteration(b, b * context, ()) for b in batches]),
        )


def chunks(tokens: int, chunk_tokens: int) -> list[Part]:
    """The parts in which a lone prompt is computed."""
    return [(start, min(chunk_tokens, tokens - start)) for start in range(0, tokens, chunk_tokens)]


def fit(samples: Sequence[Sample], chunk_tokens: int, kv_tokens: int) -> Measured:
    """Least squares of relative errors over the medians of samples of the same size, with no coefficient below 0.

    Raises FitError without prompts of three lengths and decodes of two sizes."""
    prompts, decodes = _medians(samples, lone=True), _medians(samples, lone=False)
    if len(prompts) < 3 or len(decodes) < 2:
        raise FitError(
            f"a fit needs prompts of three lengths and decodes of two sizes, got {len(prompts)} and {len(decodes)}"
        )
    most = max([one.texts for one in decodes] + [min(one.tokens, chunk_tokens) for one in prompts])
    knots = (*(knot for knot in KNOTS if knot < most), most)
    rows = [_prompt_row(one.tokens, chunk_tokens, knots) for one in prompts]
    rows += [[*_rises(one.texts, knots), one.texts, one.tokens, 0.0, 0.0] for one in decodes]
    seconds = np.array([one.seconds for one in (*prompts, *decodes)])
    matrix = np.array(rows, float) / seconds[:, None]
    scale = np.maximum(matrix.max(0), 1e-300)
    values = nnls(matrix / scale, np.ones(len(seconds)))[0] / scale
    rises, (text_s, context_s, attention_s, front_s) = values[: len(knots)], values[len(knots) :].tolist()
    base_s = tuple(np.cumsum(rises).tolist())
    still = Measured(knots, base_s, text_s, context_s, attention_s, front_s, (1.0, 1.0), chunk_tokens, kv_tokens)
    ratios = [one.seconds / still.iteration(one.texts, one.tokens, ()) for one in samples if one.texts]
    jitter = np.quantile(ratios, np.linspace(0.0, 1.0, QUANTILES))
    return replace(still, jitter=tuple(jitter.tolist()))


def errors(measured: Measured, samples: Sequence[Sample]) -> dict[str, float]:
    """The largest relative error of the medians of lone prompts and of decodes."""
    prompts, decodes = _medians(samples, lone=True), _medians(samples, lone=False)
    return {
        "prompts": max(abs((measured.prefill_s(p.tokens) + measured.front_s) / p.seconds - 1) for p in prompts),
        "decodes": max(abs(measured.iteration(d.texts, d.tokens, ()) / d.seconds - 1) for d in decodes),
    }


def _medians(samples: Sequence[Sample], *, lone: bool) -> list[Sample]:
    """One for each size: of lone prompts their length, of decodes the texts and about their context."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for one in samples:
        if (one.texts == 0) == lone:
            size = one.tokens if lone else round(3 * np.log(one.tokens / one.texts))
            groups.setdefault((one.texts, size), []).append(one)
    return [
        Sample(texts, round(np.median([one.tokens for one in group])), float(np.median([one.seconds for one in group])))
        for (texts, _), group in groups.items()
    ]


def _prompt_row(tokens: int, chunk_tokens: int, knots: tuple[int, ...]) -> list[float]:
    row = np.zeros(len(knots) + 4)
    for start, count in chunks(tokens, chunk_tokens):
        row += [*_rises(count, knots), 1.0, 0.0, float((start + count) ** 2 - start**2), 0.0]
    row[-1] = 1.0
    return list(row)


def _rises(tokens: int, knots: tuple[int, ...]) -> list[float]:
    """How much of f's value at the first knot, and of each rise to the next one, f has at ``tokens``."""
    return [1.0, *(min(max((tokens - low) / (high - low), 0.0), 1.0) for low, high in pairwise(knots))]
