"""How near simulated outcomes of policies are to measured ones, and whether both put the policies in one order. Pure.

Three orders, of the means of each policy's runs: by provisioned cost, by P95, and as an operator would choose: those
whose P95 is within λ come first, the cheaper the earlier, then the others, the lower P95 the earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

METRICS = {"p50_ms": "p50", "p95_ms": "p95", "provisioned": "cost"}
"""Fields of an outcome, and what their errors are called."""
BEYOND = 1e6
"""Added to the place of a policy over λ: any cost is below it."""


def places(p95_ms: Sequence[float], cost: Sequence[float], slo_ms: float) -> dict[str, list[float]]:
    """Order → a number for each policy, the less the earlier. ``p95_ms``, ``cost`` [policies]."""
    chosen = [money if latency <= slo_ms else BEYOND + latency for latency, money in zip(p95_ms, cost, strict=True)]
    return {"choice": chosen, "cost": list(cost), "p95": list(p95_ms)}


def tau(left: Sequence[float], right: Sequence[float]) -> float:
    """Kendall's τ-b of two lists of places; 1: the same order, -1: the reverse. ``nan`` where one has no order."""
    from scipy.stats import kendalltau

    return float(kendalltau(left, right).statistic)


def call_cpu_ms(row: Mapping[str, Any]) -> dict[str, Any]:
    """CPU milliseconds of the experts for each call, which say whether errors of latency and of HPA's cost are those of
    what calls cost: measured runs, and the mean of the simulated ones; None where it was not recorded."""
    counted = [one.call_cpu_ms for one in row["simulated"] if one.call_cpu_ms is not None]
    measured = [None if one.call_cpu_ms is None else round(one.call_cpu_ms, 3) for one in row["measured"]]
    return {"measured": measured, "simulated": round(float(np.mean(counted)), 3) if counted else None}


def compare_policies(rows: Sequence[Mapping[str, Any]], slo_ms: float) -> dict[str, Any]:
    """Errors of each policy and the worst, τ of simulated and measured orders, and of the measured ones of the first
    two repeats, which shows how much of an order is chance. ``rows``: of ``looped.simulate_all``."""
    policies, means = [], {"measured": dict[str, list[float]](), "simulated": dict[str, list[float]]()}
    for row in rows:
        policy: dict[str, Any] = {"policy": row["policy"]}
        policy |= {name: [round(value, 3) for value in row[name]] for name in ("pace", "others_cores")}
        policy["failed"] = sum(one.failed for one in row["measured"])
        policy["measured_part"] = round(float(np.mean([one.measured_part for one in row["simulated"]])), 3)
        for field, short in METRICS.items():
            theirs = np.array([getattr(one, field) for one in row["measured"]])
            ours = float(np.mean([getattr(one, field) for one in row["simulated"]]))
            policy[field] = {"measured": theirs.round(3).tolist(), "simulated": round(ours, 3)}
            policy[f"{short}_err"] = round(abs(ours / float(theirs.mean()) - 1), 4)
            policy[f"{short}_repeat"] = round(float(np.abs(theirs / theirs.mean() - 1).max()), 4)
            means["measured"].setdefault(field, []).append(float(theirs.mean()))
            means["simulated"].setdefault(field, []).append(ours)
        policy["call_cpu_ms"] = call_cpu_ms(row)
        policies.append(policy)
    simulated, measured = (
        places(means[side]["p95_ms"], means[side]["provisioned"], slo_ms) for side in ("simulated", "measured")
    )
    result: dict[str, Any] = {
        f"kendall_tau_{order}": round(tau(one, measured[order]), 3) for order, one in simulated.items()
    }
    if all(len(row["measured"]) > 1 for row in rows):
        first, second = (
            places([one.p95_ms for one in outcomes], [one.provisioned for one in outcomes], slo_ms)
            for outcomes in ([row["measured"][repeat] for row in rows] for repeat in range(2))
        )
        result |= {f"kendall_tau_{order}_repeat": round(tau(first[order], second[order]), 3) for order in first}
    worst = {f"policy_{short}_err": max(one[f"{short}_err"] for one in policies) for short in METRICS.values()}
    return {"kendall_tau": result["kendall_tau_choice"], **result, **worst, "slo_ms": slo_ms, "policies": policies}
