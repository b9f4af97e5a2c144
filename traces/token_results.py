"""Latencies of tokens and goodput of a replay of completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from platform_words.durations import duration
from traces.completions import TokenTargets
from traces.results import RequestRecord


def token_percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """P50, P90, P99 and mean in the values' unit, Nones left out; None without values. Linear between neighbours."""
    array = np.array([value for value in values if value is not None], dtype=np.float64)
    if array.size == 0:
        return None
    p50, p90, p99 = np.quantile(array, (0.5, 0.9, 0.99))
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "mean": float(array.mean())}


def keeps(record: RequestRecord, targets: TokenTargets) -> bool:
    """Whether a request was answered within ``targets``.

    TTFT counts from the moment the request was due, so that a late client or a wait for one of its connections cannot
    hide. An answer of one token has no time per output token and keeps that target.
    """
    if record.outcome != "ok" or record.sent_s is None or record.ttft_s is None:
        return False
    since_due_s = record.sent_s - record.scheduled_s + record.ttft_s
    keeps_ttft = targets.ttft_s is None or since_due_s <= targets.ttft_s
    return keeps_ttft and (targets.tpot_s is None or record.tpot_s is None or record.tpot_s <= targets.tpot_s)


def summarise_tokens(records: Sequence[RequestRecord], span_s: float, targets: TokenTargets) -> dict[str, Any]:
    """TTFT, time per output token and tokens/s of the answers that were ok; goodput over all records but cancelled
    ones, None without a target. ``span_s``: seconds from the replay's begin to its last answer. JSON-ready."""
    ok = [record for record in records if record.outcome == "ok"]
    judged = [record for record in records if record.outcome != "cancelled"]
    tokens = sum(record.tokens or 0 for record in ok)
    kept = sum(keeps(record, targets) for record in judged)
    has_targets = targets != TokenTargets()
    return {
        "ttft_s": token_percentiles(record.ttft_s for record in ok),
        "tpot_s": token_percentiles(record.tpot_s for record in ok),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in ok),
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / span_s if span_s else None,
        "ended_early": sum((record.tokens or 0) < (record.max_tokens or 0) for record in ok),
        "ttft_target_s": targets.ttft_s,
        "tpot_target_s": targets.tpot_s,
        "goodput": kept / len(judged) if judged and has_targets else None,
        "goodput_rps": kept / span_s if span_s and has_targets else None,
    }


def token_rows(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The summary of :func:`summarise_tokens` and how the requests were made, as rows for people."""
    for name, key in (("TTFT", "ttft_s"), ("per token", "tpot_s")):
        if numbers[key]:
            yield name, ", ".join(f"{p.upper()} {duration(numbers[key][p])}" for p in ("p50", "p90", "p99"))
    if numbers["output_tokens_per_s"]:
        yield "tokens", f"{numbers['output_tokens']} written, {numbers['output_tokens_per_s']:.1f} tokens/s"
    if numbers["goodput"] is not None:
        targets = (("TTFT", numbers["ttft_target_s"]), ("per token", numbers["tpot_target_s"]))
        kept = " and ".join(f"{name} in {duration(value)}" for name, value in targets if value is not None)
        rate = "" if numbers["goodput_rps"] is None else f", {numbers['goodput_rps']:.2f} requests/s"
        yield "goodput", f"{numbers['goodput']:.1%} of requests{rate} with {kept}"
    if not numbers["ignore_eos"]:
        yield "ended early", f"{numbers['ended_early']} answers (the API has no ignore_eos)"
    if numbers["cut_to_context"]:
        yield "cut", f"{numbers['cut_to_context']} requests to the context of {numbers['context']} tokens"
