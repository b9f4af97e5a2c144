"""Real routing of Mixture-of-Experts models: which experts the tokens chose, per window, layer and expert.

:class:`Routing` is what every loader here gives. Its ``shares`` [windows, layers, experts] are the popularity that
a simulator draws token routing from; its ``requests``, where the log names single prompts, keep how the tokens of
one prompt spread, which no popularity can show (a prompt's tokens favour the same experts).

Two logs are known (``traces/README.md``): per-token choices of DeepSeek-V2-Lite-Chat as parquet
(``prompt, layer, pos, e0 … e5``) and OLMoE's and Mixtral's counts per text domain as CSV
(``model,domain,layer,expert,assignments``). Neither has a clock: a *window* is a run of consecutive prompts, or one
text domain.

Worked example: 2 tokens, top-2 of 4 experts, choices (0, 3) and (0, 1) give assignments [2, 1, 0, 1] and shares
[.5, .25, 0, .25]; they sum to one, so tokens x top_k x share is the number of (token, expert) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.model import FloatArray, IntArray

MAX_CELLS = 200_000_000
"""windows x layers x experts (or requests x layers x experts) above which a log is refused."""


@dataclass(frozen=True, eq=False)
class RequestRouting:
    """The same assignments, prompt by prompt."""

    assignments: NDArray[np.int32]
    """[requests, layers, experts] int32: (token, expert) pairs of this prompt."""
    tokens: IntArray
    """[requests] int64."""
    window: IntArray
    """[requests] int64: the window the prompt lies in, never falling."""

    @property
    def touched(self) -> NDArray[np.bool_]:
        """[requests, layers, experts] bool: the prompt calls this expert at all (concurrency, not tokens)."""
        return self.assignments > 0


@dataclass(frozen=True, eq=False)
class Routing:
    """Expert choices summed per window. Build it with :func:`make_routing`, which checks and freezes."""

    assignments: IntArray
    """[windows, layers, experts] int64: (token, expert) pairs."""
    tokens: IntArray
    """[windows] int64: tokens per window; each layer's assignments sum to tokens x top_k."""
    top_k: int
    window_names: tuple[str, ...]
    """What each window is: ``prompts 1-66``, ``arxiv``."""
    layer_names: tuple[str, ...]
    """The layers' names in the log; index 0 is the first layer of the log, whatever its number."""
    model: str
    source: str
    """Where it comes from and what was done to it; that of synthetic routing begins so."""
    sha256: str | None
    """SHA-256 of the file it was read from; None for synthetic routing."""
    requests: RequestRouting | None = None
    """Single prompts, where the log names them."""

    @property
    def windows(self) -> int:
        return int(self.assignments.shape[0])

    @property
    def layers(self) -> int:
        return int(self.assignments.shape[1])

    @property
    def experts(self) -> int:
        return int(self.assignments.shape[2])

    @property
    def shares(self) -> FloatArray:
        """[windows, layers, experts] float64: share of the window's assignments; sums to 1 over experts."""
        shares: FloatArray = self.assignments / self.assignments.sum(axis=2, keepdims=True)
        return shares


def make_routing(
    assignments: NDArray[np.integer] | Sequence[object],
    tokens: NDArray[np.integer] | Sequence[int],
    *,
    top_k: int,
    window_names: Sequence[str],
    layer_names: Sequence[str],
    model: str,
    source: str,
    sha256: str | None = None,
    requests: RequestRouting | None = None,
) -> Routing:
    """Check that ``assignments`` [windows, layers, experts] and ``tokens`` [windows] agree, and freeze them. Raises
    TraceError."""
    counts = np.array(assignments, dtype=np.int64)
    totals = np.array(tokens, dtype=np.int64)
    if counts.ndim != 3 or 0 in counts.shape:
        raise TraceError(f"{source}: assignments have axes [windows, layers, experts], got shape {counts.shape}")
    shape = (len(window_names), len(layer_names))
    if counts.shape[:2] != shape or totals.shape != shape[:1]:
        raise TraceError(f"{source}: {shape} windows and layers are named, got shape {counts.shape}")
    if not 1 <= top_k <= counts.shape[2]:
        raise TraceError(f"{source}: top_k {top_k} is not between 1 and the {counts.shape[2]} experts")
    if counts.min() < 0 or totals.min() < 1:
        raise TraceError(f"{source}: assignments start at 0 and every window needs a token")
    wrong = np.argwhere(counts.sum(axis=2) != top_k * totals[:, None])
    if wrong.size:
        window, layer = (int(index) for index in wrong[0])
        raise TraceError(
            f"{source}: window {window_names[window]} layer {layer_names[layer]} has {counts[window, layer].sum()} "
            f"assignments, {totals[window]} tokens x top {top_k} are {top_k * totals[window]}"
        )
    if requests is not None:
        _check_requests(requests, counts, totals, source)
    counts.setflags(write=False)
    totals.setflags(write=False)
    return Routing(counts, totals, top_k, tuple(window_names), tuple(layer_names), model, source, sha256, requests)


def _check_requests(requests: RequestRouting, counts: IntArray, totals: IntArray, source: str) -> None:
    """The prompts add up to the windows. Raises TraceError."""
    size = requests.tokens.size
    if requests.assignments.shape != (size, *counts.shape[1:]) or requests.window.shape != (size,):
        raise TraceError(f"{source}: the prompts' axes {requests.assignments.shape} do not fit {counts.shape}")
    if size == 0 or requests.window.min() < 0 or requests.window.max() >= totals.size:
        raise TraceError(f"{source}: a prompt lies in no window")
    if (np.bincount(requests.window, requests.tokens, totals.size) != totals).any():
        raise TraceError(f"{source}: the prompts' tokens do not add up to the windows'")
    summed = np.zeros_like(counts)
    np.add.at(summed, requests.window, requests.assignments)
    if (summed != counts).any():
        raise TraceError(f"{source}: the prompts' assignments do not add up to the windows'")
    for array in (requests.assignments, requests.tokens, requests.window):
        array.setflags(write=False)
