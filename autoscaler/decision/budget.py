"""A budget per hour: growth is taken back, the most expensive first and replica by replica, until all functions fit."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from autoscaler.contract import Configuration, Decision, MemoryNeed
from autoscaler.prices import PriceSheet

HOUR_S = 3600.0


def within_budget(
    decisions: Sequence[Decision],
    present: Mapping[str, Configuration],
    needs: Mapping[str, MemoryNeed | None],
    budget_per_hour: float,
    prices: PriceSheet,
) -> list[Decision]:
    """Decisions that together cost at most ``budget_per_hour`` provisioned, or of which none grows any more.

    What runs now is never taken away, so a budget below the present cost only stops growth. ``needs``: Eq. (2) of each
    function, which a part of a growth must satisfy too.
    """
    result = list(decisions)
    targets = {**present, **{decision.function: decision.target for decision in decisions}}
    cost = sum(per_hour(configuration, prices) for configuration in targets.values())
    growths = [_growth(decision, prices) if decision.changes else 0.0 for decision in result]
    heap = [(-growth, i) for i, growth in enumerate(growths) if growth > 0]
    heapq.heapify(heap)
    while heap and cost > budget_per_hour:
        _, i = heapq.heappop(heap)
        decision = result[i]
        less = _less(decision, needs.get(decision.function))
        cost += per_hour(less, prices) - per_hour(decision.target, prices)
        limits = decision.limits_hit if _SENTENCE in decision.limits_hit else (*decision.limits_hit, _SENTENCE)
        result[i] = decision._replace(target=less, limits_hit=limits)
        if _growth(result[i], prices) > 0:
            heapq.heappush(heap, (-_growth(result[i], prices), i))
    return result


def no_worse(now: Configuration, target: Configuration) -> bool:
    """Whether a replica of ``target`` has at least the memory, and no more tokens to hold, than one of ``now``."""
    return target.memory_mb >= now.memory_mb and target.replicas >= now.replicas


def per_hour(configuration: Configuration, prices: PriceSheet) -> float:
    """Provisioned cost for one hour of all replicas that are ordered, and of standbys that wait.

    Replicas that sleep between requests count as running: under load all of them do.
    """
    return prices.provisioned(configuration, HOUR_S, (configuration.replicas - configuration.running) * HOUR_S)


_SENTENCE = "budget"


def _growth(decision: Decision, prices: PriceSheet) -> float:
    return per_hour(decision.target, prices) - per_hour(decision.present, prices)


def _less(decision: Decision, need: MemoryNeed | None) -> Configuration:
    """One replica less; the present configuration when none was added or the rest could not hold its tokens."""
    now, target = decision.present, decision.target
    if target.replicas - 1 <= now.replicas:
        return now
    less = target.with_replicas(target.replicas - 1)
    return less if no_worse(now, less) or (need is not None and need.holds(less)) else now
