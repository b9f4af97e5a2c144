"""Log probabilities of a prompt's own tokens."""

from __future__ import annotations

import torch

from functions.generation.sampling import Chosen, logprobs_of
from functions.generation.texts import Text


def score(text: Text, rows: torch.Tensor) -> None:
    """Report the prompt's tokens that ``rows [tokens, vocab]``, the logits after its next tokens, are about. The first
    token follows nothing, so it has no probability."""
    prompt = text.tokens[: len(text.tokens) - text.written]
    first = [] if text.scored else [Chosen(prompt[0])]
    scored_tokens = prompt[max(text.scored, 1) : text.kept + len(rows) + 1]
    skipped = max(text.scored, 1) - text.kept - 1  # what was reported before the text was preempted
    scored = [
        *first,
        *logprobs_of(rows[skipped : skipped + len(scored_tokens)], scored_tokens, text.prompt_logprobs or 0),
    ]
    text.scored += len(scored)
    text.sink.prompt(scored)
