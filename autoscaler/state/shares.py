"""The features of an expert among the experts of its layer, and of the layer: TS, RS, SR, TRE, ELV."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaler.contract import NodeObservation


def routing_entropy(shares: Sequence[float]) -> float:
    """TRE = -Σ TS log TS (natural logarithm); shares of 0 add nothing. Even over K experts: ln K."""
    return -math.fsum(share * math.log(share) for share in shares if share > 0) or 0.0


def variance(values: Sequence[float]) -> float | None:
    """Population variance, None for no values."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)


def layer_shares(
    tokens: Sequence[float | None], calls: Sequence[float | None], p95_s: Sequence[float | None]
) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """TS, RS and SR of one layer's experts, from their tokens, calls and tail latencies in the same order.

    Shares are None when any expert's number is unknown (a share of a part is no share) and when the layer had no work.
    SR is over the experts that have a tail latency, which are those that were called.
    """
    all_tokens, all_calls = total(tokens), total(calls)
    slowest_s = max((one for one in p95_s if one is not None), default=None)
    return (
        [ratio(one, all_tokens) for one in tokens],
        [ratio(one, all_calls) for one in calls],
        [ratio(one, slowest_s) for one in p95_s],
    )


def tails(experts: Sequence[NodeObservation]) -> list[float]:
    """EL of the experts that were called."""
    return [node.latency_p95_s for node in experts if node.latency_p95_s is not None]


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None when one of them is unknown or there are none."""
    measured = [value for value in values if value is not None]
    return math.fsum(measured) if measured and len(measured) == len(values) else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where a number is unknown or the whole is zero."""
    return None if part is None or not whole else part / whole
