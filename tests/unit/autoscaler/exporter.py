"""What an ingress and a gateway would expose at a moment: counters that grow linearly, gauges that stand."""

from __future__ import annotations

from functions.serving import metric_names as ingress
from gateway import metric_names as gateway

EXPERT = "expert-0-0"
FUNCTION = f"m-{EXPERT}.openfaas-fn"
FOREIGN = "other-expert-0-0.openfaas-fn"
TOKENS_PER_S, CALLS_PER_S, BUSY_PER_S, CPU_PER_S = 30.0, 6.0, 1.5, 0.8
BOUNDS = ("0.1", "0.2", "0.4", "+Inf")
CALLS_UP_TO = (0.25, 0.5, 0.75, 1.0)
"""Share of calls that take at most each bound."""


def lines_of_ingress(passed_s: float) -> list[str]:
    """After ``passed_s`` seconds of steady load."""
    lines = []
    for pipeline, node, factor in (("m", EXPERT, 1.0), ("m", "expert-0-1", 0.5), ("other", EXPERT, 9.0)):
        own, seconds = f'pipeline="{pipeline}",node="{node}"', passed_s * factor
        lines += [
            f'{ingress.NODE_CALLS}{{{own},code="200"}} {CALLS_PER_S * seconds}',
            f"{ingress.NODE_TOKENS}{{{own}}} {TOKENS_PER_S * seconds}",
            f"{ingress.NODE_BUSY_SECONDS}{{{own}}} {BUSY_PER_S * seconds}",
            f"{ingress.NODE_WAIT_SECONDS}{{{own}}} 0",
            f"{ingress.NODE_TOKENS_PEAK}{{{own}}} 40",
        ]
        lines += [
            f'{ingress.NODE_CALL_SECONDS}_bucket{{{own},le="{bound}"}} {CALLS_PER_S * seconds * share}'
            for bound, share in zip(BOUNDS, CALLS_UP_TO, strict=True)
        ]
    for pipeline, factor in (("m", 1.0), ("other", 5.0)):
        own, seconds = f'pipeline="{pipeline}"', passed_s * factor
        lines += [
            f'{ingress.REQUESTS}{{{own},code="200"}} {3 * seconds}',
            f'{ingress.REQUESTS}{{{own},code="503"}} {seconds}',
            f"{ingress.REQUEST_TOKENS}{{{own}}} {20 * seconds}",
            f"{ingress.REQUEST_SECONDS}_sum{{{own}}} {2 * seconds}",
            f"{ingress.REQUESTS_IN_FLIGHT}{{{own}}} 2",
        ]
        lines += [
            f'{ingress.REQUEST_SECONDS}_bucket{{{own},le="{bound}"}} {4 * seconds * share}'
            for bound, share in zip(BOUNDS, CALLS_UP_TO, strict=True)
        ]
        lines += [
            f'{ingress.LAYER_BARRIER_SECONDS}_bucket{{{own},layer="0",le="{bound}"}} {4 * seconds * share}'
            for bound, share in zip(BOUNDS, CALLS_UP_TO, strict=True)
        ]
    return lines


def lines_of_gateway(passed_s: float) -> list[str]:
    lines = [f"{gateway.CPU_SCALE} 0.5"]
    for name, factor in ((FUNCTION, 1.0), (FOREIGN, 7.0), ("m.openfaas-fn", 1.0)):
        own = f'function_name="{name}"'
        lines += [
            f"{gateway.SERVICE_COUNT}{{{own}}} 3",
            f"{gateway.CPU_LIMIT_CORES}{{{own}}} 2",
            f"{gateway.MEMORY_LIMIT_BYTES}{{{own}}} {256 * 2**20}",
            f"{gateway.MAX_INFLIGHT}{{{own}}} 4",
            f'{gateway.FUNCTION_REPLICAS}{{{own},state="ready"}} 2',
            f'{gateway.FUNCTION_REPLICAS}{{{own},state="starting"}} 1',
        ]
        for replica in ("a", "b"):
            lines += [
                f'{gateway.REPLICA_CPU_SECONDS}{{{own},replica="{replica}"}} {CPU_PER_S * factor * passed_s}',
                f'{gateway.REPLICA_MEMORY_BYTES}{{{own},replica="{replica}"}} {64 * 2**20}',
            ]
    return lines


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
