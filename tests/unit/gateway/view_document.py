"""A controller's document as ``autoscaler.view`` writes it, of a pipeline with any number of layers and experts."""

from __future__ import annotations

import math
import random
from typing import Any


def configuration(replicas: int, memory_mb: int = 256, concurrency: int = 8) -> dict[str, Any]:
    return {
        "memory_mb": memory_mb,
        "cpu_cores": 1.0,
        "gpu_share": 0.0,
        "replicas": replicas,
        "concurrency": concurrency,
    }


def node(name: str, kind: str, layer: int | None, expert: int | None, **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "node": name,
        "function": f"minilm-{name}" if name != "ingress" else "minilm",
        "kind": kind,
        "layer": layer,
        "expert": expert,
        "configuration": configuration(1),
        "ready_replicas": 1,
        "tokens_per_s": None,
        "token_share": None,
        "requests_per_s": 3.0,
        "latency_p95_s": None,
        "cpu_utilisation": None,
        "concurrency_utilisation": None,
        "in_flight": 0.1,
        "waiting": 0.0,
    }
    return {**known, **more}


def decision(time_s: float, name: str, before: int, after: int, reason: str, **more: Any) -> dict[str, Any]:
    known = {
        "time_s": time_s,
        "function": f"minilm-{name}",
        "node": name,
        "present": configuration(before),
        "wish": configuration(after),
        "target": configuration(after),
        "reason": reason,
        "limits_hit": [],
        "result": "applied",
    }
    return {**known, **more}


def nodes_of(draw: random.Random, layers: int, experts: int) -> list[dict[str, Any]]:
    nodes = [node("ingress", "ingress", None, None, latency_p95_s=0.1)]
    for i in range(layers + 1):
        p95_s = draw.uniform(0.004, 0.012)
        nodes.append(
            node(f"segment-{i}", "segment", i, None, latency_p95_s=p95_s, cpu_utilisation=draw.uniform(0, 0.6))
        )
    for i in range(layers):
        for j in range(experts):
            share = draw.betavariate(1.3, 3.0)
            replicas = 1 + round(4 * share)
            load = {
                "tokens_per_s": 900 * share,
                "token_share": share,
                "latency_p95_s": 0.003 + 0.02 * share,
                "cpu_utilisation": min(1.0, 0.15 + share),
                "concurrency_utilisation": 0.9 * share,
                "configuration": configuration(replicas),
                "ready_replicas": replicas,
            }
            nodes.append(node(f"expert-{i}-{j}", "expert", i, j, **load))
    return nodes


def history_until(end_s: float, draw: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "end_s": end_s - 5 * (119 - i),
            "p95_s": None if i < 3 else 0.075 + 0.03 * math.sin(i / 11) + draw.uniform(0, 0.015) + (i == 70) * 0.05,
            "requests_per_s": 3.0,
            "provisioned_per_hour": 2.2 + 0.6 * round(math.sin(i / 17)),
        }
        for i in range(120)
    ]


def document(end_s: float, layers: int = 6, experts: int = 4, seed: int = 7, **more: Any) -> dict[str, Any]:
    """The state after 120 windows of 5 s that end at ``end_s``; one window missed its SLO of 120 ms."""
    draw = random.Random(seed)
    nodes = nodes_of(draw, layers, experts)
    history = history_until(end_s, draw)
    decisions = [
        decision(end_s - 65, "expert-2-1", 2, 1, "cpu 0.11 of target 0.8 for 300 s", limits_hit=["cool-down"]),
        decision(end_s - 40, "expert-0-3", 1, 3, "concurrency 0.93 over target 0.7"),
        decision(end_s - 15, "segment-4", 1, 2, "cpu 0.97 over target 0.8", result="failed"),
        decision(end_s - 5, "expert-5-0", 2, 4, "concurrency 1.31 over target 0.7", limits_hit=["replicas_max"]),
    ]
    return {
        "version": 1,
        "pipeline": "minilm",
        "layers": layers,
        "policy": "hpa",
        "dry_run": False,
        "leads": True,
        "end_s": end_s,
        "window_s": 5.0,
        "slo_s": 0.12,
        "currency": "USD",
        "latency_p50_s": 0.041,
        "latency_p95_s": history[-1]["p95_s"],
        "latency_p99_s": 0.13,
        "requests_per_s": 3.4,
        "tokens_per_s": 2210.0,
        "in_flight": 0.4,
        "failed": 0.0,
        "cost": {"busy_per_hour": 0.41, "provisioned_per_hour": history[-1]["provisioned_per_hour"]},
        "stale": False,
        "problems": [],
        "conditions": [],
        "nodes": nodes,
        "history": history,
        "decisions": decisions,
        **more,
    }
