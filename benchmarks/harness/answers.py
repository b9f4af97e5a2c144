"""Answers of the whole model, which those of the pipeline are compared with: what is measured must also be right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-4
"""Largest relative difference of a right answer: batches of different requests round differently."""
EXACT = 1e-5
"""The same where a request is alone."""
TEXTS, MAX_WORDS = 24, 24


def expected_answers(directory: Path) -> tuple[list[str], torch.Tensor]:
    """Texts, and the whole model's embeddings of them, [texts, d] float32."""
    import torch  # here: a process that only sends and compares starts in a fraction of the time without it

    from moe.reference import WholeModel
    from traces.prompts import load_prompts

    texts = list(load_prompts(None, MAX_WORDS).choose(TEXTS, 0))
    torch.set_num_threads(1)
    whole = WholeModel(directory)
    return texts, torch.cat([whole.embed([text]) for text in texts])


def relative_difference(answer: object, expected: np.ndarray) -> float:
    """Largest difference over the largest expected value; ``expected`` [..., d] float."""
    return float(np.abs(np.asarray(answer) - expected).max() / np.abs(expected).max())


def check_equal(embeddings: Sequence[Sequence[float]], expected: np.ndarray, what: str) -> None:
    """``expected`` [texts, d] float. Raises RuntimeError where the answers differ by more than EXACT."""
    worst = relative_difference(embeddings, expected)
    if worst > EXACT:
        raise RuntimeError(f"{what}: the answer differs from the whole model's by {worst:.1e}")
