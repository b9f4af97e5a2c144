"""What the whole model takes on this machine, undivided and alone: what a latency target is a multiple of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from moe.reference import WholeModel
from moe.threads import computing_threads

WARM, CALLS = 10, 30
TEXT = (
    "Engineers who serve mixture of experts models pay for many experts that wait for work while a few are busy, and "
    "which of them are busy changes with every text that somebody sends. "
)


def whole_model_s(directory: Path, tokens: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of one pass over so many tokens, on one thread, when it is warm.

    An encoder embeds them; a decoder reads them and generates the next one. Raises MoeError where the pipeline cannot
    be read or has no tokenizer.
    """
    model = WholeModel(directory)
    task = model.embed_ids if model.manifest.task == "embedding" else model.logits_ids
    ids = model.tokenizer.encode_all([TEXT * (1 + tokens // 8)])[0][:tokens]
    with computing_threads(1):
        spans_s = []
        for _ in range(WARM + CALLS):
            begun_s = clock()
            task([ids])
            spans_s.append(clock() - begun_s)
    return statistics.median(spans_s[WARM:])
