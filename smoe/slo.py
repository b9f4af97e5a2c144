"""The SLO of ``smoe run`` where none is given: from what is known of a prompt's work, and nothing measured.

A prompt's latency through functions with small CPU limits is no measure to hang a target on: a call that fits into its
CFS quota takes a millisecond, one that just does not takes up to a tenth of a second, so a machine that is a third
slower for a while shows prompts that are five times as long (decision 7). Pure.
"""

from __future__ import annotations

from moe.manifest import Manifest

FLOPS_PER_S, CALL_S = 24e9, 0.00075
"""CPU of a call on one core of the reference machine: its arithmetic at this speed, and what every call takes on top
(decision 3: passes of 573 MFLOP, with 25 ms in 24 experts and 21 ms in 7 segments)."""
STEPS_S = (0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 25.0, 50.0)
"""An SLO is the first of these that is long enough, so that it is a number that people would choose."""


def known_pass_s(manifest: Manifest, tokens: float, segment_cores: float, expert_cores: float) -> float:
    """Seconds of a pass of ``tokens`` whose calls get the cores of their limits and no more, one layer after another,
    each layer's tokens spread evenly over the experts that its router chooses among. ``*_cores``: real ones; a call
    uses one at most."""
    segments_s = sum(call_s(tokens * segment.flops_per_token) for segment in manifest.segments)
    experts_s = 0.0
    for layer in range(manifest.layers):
        experts = manifest.experts(layer)
        each = [tokens * manifest.tokens_share(expert) * expert.flops_per_token for expert in experts]
        experts_s += max(map(call_s, each))
    return segments_s / min(1.0, segment_cores) + experts_s / min(1.0, expert_cores)


def call_s(flops: float) -> float:
    """CPU seconds of a call on the reference machine."""
    return CALL_S + flops / FLOPS_PER_S


TTFT_TIMES, TPOT_TIMES = 5.0, 3.0
"""What a decoder's targets are of what a lone text takes, where none are given."""
ROUND_MS = tuple(digit * 10**power for power in range(6) for digit in (1, 1.5, 2, 3, 5, 7.5))


def token_targets_ms(ttft_s: float, tpot_s: float) -> tuple[float, float]:
    """Round targets of TTFT and TPOT, in milliseconds, for a decoder whose lone text takes so many seconds."""
    wanted = (1000 * TTFT_TIMES * ttft_s, 1000 * TPOT_TIMES * tpot_s)
    first, following = (next((step for step in ROUND_MS if step >= least), least) for least in wanted)
    return first, following


def round_slo_s(least_s: float) -> float:
    """The first of ``STEPS_S`` that is at least ``least_s`` seconds, else ``least_s`` itself."""
    return next((step_s for step_s in STEPS_S if step_s >= least_s), least_s)
