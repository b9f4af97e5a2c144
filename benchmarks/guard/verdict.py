"""When a run is worse than HPA's, and what many such verdicts come to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evaluation.comparison.intervals import share

MARGIN = 0.036
"""Part of HPA's cost, and share of all windows, that a run may be above HPA's."""


@dataclass(frozen=True)
class Outcome:
    """One run of one policy in one world, warm-up left out. ``cost``: provisioned, of the experts, standbys included;
    ``over``: windows over λ, of ``windows``; ``guarded``: windows that HPA decided in the policy's place, by reason;
    ``held``: windows in which nothing was decided for want of data."""

    cost: float
    over: int
    windows: int
    guarded: Mapping[str, int] = field(default_factory=dict)
    held: int = 0

    @property
    def share_over(self) -> float:
        return self.over / max(1, self.windows)

    @property
    def share_guarded(self) -> float:
        return sum(self.guarded.values()) / max(1, self.windows)


def worse(policy: Outcome, hpa: Outcome) -> str:
    """``over λ`` where more than 3.6 % of all windows more are over λ than under HPA; ``cost`` where it costs more than
    1.036 times HPA's with no fewer windows over λ; ``both``; else empty."""
    broken = policy.share_over - hpa.share_over > MARGIN + 1e-9
    costlier = policy.cost > (1 + MARGIN) * hpa.cost and policy.over >= hpa.over
    return "both" if broken and costlier else "over λ" if broken else "cost" if costlier else ""


def worse_as_written(policy: Outcome, hpa: Outcome) -> bool:
    """As :func:`worse`, and also where more cost bought fewer windows over λ."""
    return bool(worse(policy, hpa)) or policy.cost > (1 + MARGIN) * hpa.cost


def summed_up(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The verdicts on the runs of ``name`` in all worlds: ``rows`` with ``outcomes`` and ``kinds``."""
    pairs = [(Outcome(**row["outcomes"][name]), Outcome(**row["outcomes"]["hpa"])) for row in rows]
    verdicts = [worse(*pair) for pair in pairs]
    bad = sum(map(bool, verdicts))
    return {
        "worlds": len(rows),
        "worse_share": round(bad / max(1, len(rows)), 4),
        "worse_interval": None if (interval := share(bad, len(rows))) is None else asdict(interval),
        "worse": bad,
        "causes": dict(Counter(verdict for verdict in verdicts if verdict)),
        "as_written_share": round(sum(worse_as_written(*pair) for pair in pairs) / max(1, len(rows)), 4),
        "cost": round(sum(policy.cost / hpa.cost for policy, hpa in pairs) / max(1, len(pairs)), 4),
        "over": round(sum(policy.over for policy, _ in pairs) / max(1, sum(p.windows for p, _ in pairs)), 4),
    }


def by_kind(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, dict[str, list[int]]]:
    """Attribute → value → [worlds that are worse, worlds]."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        bad = bool(worse(Outcome(**row["outcomes"][name]), Outcome(**row["outcomes"]["hpa"])))
        for attribute, value in row["kinds"].items():
            counts = kinds.setdefault(attribute, {}).setdefault(value, [0, 0])
            counts[0] += bad
            counts[1] += 1
    return kinds


def guard_of(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Share of all windows in which HPA decided, and by reason; share in which nothing could be decided."""
    outcomes = [Outcome(**row["outcomes"][name]) for row in rows]
    windows = max(1, sum(one.windows for one in outcomes))
    reasons: Counter[str] = Counter()
    for one in outcomes:
        reasons.update(one.guarded)
    return {
        "share": round(sum(reasons.values()) / windows, 4),
        "reasons": {why: round(count / windows, 4) for why, count in reasons.most_common()},
        "held": round(sum(one.held for one in outcomes) / windows, 4),
        "worlds": sum(bool(one.guarded) for one in outcomes),
    }


def worst(rows: Sequence[Mapping[str, Any]], name: str, count: int = 10) -> list[dict[str, Any]]:
    """The ``count`` worlds that are worse by most: windows over λ before cost."""

    def excess(row: Mapping[str, Any]) -> tuple[bool, float, float]:
        policy, hpa = Outcome(**row["outcomes"][name]), Outcome(**row["outcomes"]["hpa"])
        return bool(worse(policy, hpa)), policy.share_over - hpa.share_over, policy.cost / hpa.cost

    shown = []
    for row in sorted(rows, key=excess, reverse=True)[:count]:
        policy, hpa = Outcome(**row["outcomes"][name]), Outcome(**row["outcomes"]["hpa"])
        shown.append({
            "seed": row["seed"], "worse": worse(policy, hpa), "cost": round(policy.cost / hpa.cost, 3),
            "over": policy.over, "hpa_over": hpa.over, "windows": policy.windows,
            "guarded": round(policy.share_guarded, 3), "kinds": row["kinds"],
        })  # fmt: skip
    return [one for one in shown if one["worse"]]


def without_numbers(reason: str) -> str:
    """A guard's sentence as a kind of reason: ``in 3 windows`` and ``in 4 windows`` are one."""
    return re.sub(r"(?<![A-Za-z\d])\d[\d.]*(e[+-]?\d+)?", "N", reason)
