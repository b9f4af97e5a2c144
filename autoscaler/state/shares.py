"""The features of an expert among the experts of its layer, and of the layer: TS, RS, SR, TRE, ELV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

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


def with_shares(experts: Sequence[NodeObservation]) -> list[NodeObservation]:
    """TS, RS and SR of one layer's experts.

    Shares are None when any expert's number is unknown (a share of a part is no share) and when the layer had no work.
    SR is over the experts that have a tail latency, which are those that were called.
    """
    tokens = total([node.tokens_per_s for node in experts])
    calls = total([node.requests_per_s for node in experts])
    slowest = max(tails(experts), default=None)
    return [
        with_fields(
            node,
            token_share=ratio(node.tokens_per_s, tokens),
            request_share=ratio(node.requests_per_s, calls),
            straggler_ratio=ratio(node.latency_p95_s, slowest),
        )
        for node in experts
    ]


_NAMES = tuple(entry.name for entry in fields(NodeObservation))
_values = attrgetter(*_NAMES)


def with_fields(node: NodeObservation, **changes: object) -> NodeObservation:
    """``dataclasses.replace`` in a fifth of its time: hundreds of nodes are changed in every window."""
    return NodeObservation(**{**dict(zip(_NAMES, _values(node), strict=True)), **changes})


def tails(experts: Sequence[NodeObservation]) -> list[float]:
    """EL of the experts that were called."""
    return [node.latency_p95_s for node in experts if node.latency_p95_s is not None]


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None when one of them is unknown or there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """None where a number is unknown or the whole is zero."""
    return None if part is None or not whole else part / whole
