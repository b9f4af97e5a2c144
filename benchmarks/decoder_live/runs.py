"""A policy on the running decoder: one load, driven by the controller of ``smoe autoscale``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoscaler.build import build_controller
from autoscaler.contract import Configuration, ConfigurationSpace, TickReport
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.settings import ControllerSettings
from benchmarks.closed_loop.contenders import PUBLISHED_TICK_S
from benchmarks.decoder_live.loads import Request, keep_up, send
from benchmarks.fidelity.runs import settle
from benchmarks.generation import build, in_one_process
from benchmarks.harness.controlling import controlling
from benchmarks.harness.cores import cores_busy
from benchmarks.harness.running import RunningPipeline
from benchmarks.harness.streams import WHOLE, Stream
from evaluation.processes import worker_processes
from moe.reference import WholeModel

WARM = 12
"""Texts before a run that are not counted, four at a time: the first calls of new replicas are slow."""
FEW = 5
"""Windows with fewer tokens are not judged."""


@dataclass(frozen=True)
class Setting:
    """What all policies meet. Seconds."""

    seconds: float
    """Length of a run, with ``warm_up_s`` that is not judged."""
    warm_up_s: float
    window_s: float
    ttft_s: float
    tpot_s: float
    most: int
    """Replicas of a function."""
    start: Configuration
    """What every segment and expert has, but for replicas."""
    checked: int
    """Texts of a run that are compared with what one process writes."""


@dataclass(frozen=True)
class Contender:
    """A policy, its settings, and what a run of it begins with."""

    name: str
    policy: str
    table: Mapping[str, Any]
    instances: int
    replicas: int
    """Each expert's."""


def contender(name: str, begin: tuple[int, int], window_s: float) -> Contender:
    """``constant-A-E``: A instances and E replicas of every expert; ``hpa-T``: both targets of HPA are T; ``janus-H``:
    headroom H; else a policy of docs/policies.md with its defaults. HPA's times are Kubernetes', shorter as windows are
    shorter than its period of 15 s; ``hpa-T-W`` scales down after W windows."""
    policy, *numbers = name.split("-")
    if policy == "constant":
        return Contender(name, "static", {}, int(numbers[0]), int(numbers[1]))
    table: dict[str, Any] = {}
    if policy == "janus" and numbers:
        table = {"headroom": float(numbers[0])}
    elif policy == "hpa":
        f = window_s / PUBLISHED_TICK_S
        table = {"down_stabilisation_s": 300 * f, "period_s": 15 * f}
        table |= {key: float(numbers[0]) for key in ("cpu_target", "concurrency_target") if numbers}
        if len(numbers) > 1:
            table["down_stabilisation_s"] = window_s * int(numbers[1])
    return Contender(name, policy, table, *begin)


def measured(
    served: RunningPipeline,
    model: WholeModel,
    one: Contender,
    setting: Setting,
    requests: Sequence[Request],
    together: int = 0,
) -> dict[str, Any]:
    """All figures of one run, JSON-ready. ``together``: texts at once; 0: requests come at their times."""
    name, password = served.manifest.name, served.gateway.auth[1]
    controller, window_s = build_controller(
        ControllerSettings(
            gateway_url=served.client.url,
            password=password,
            manifest_dir=served.directory,
            policy=one.policy,
            policy_settings=dict(one.table) or None,
            interval_s=setting.window_s,
            tpot_s=setting.tpot_s,
            fallback_windows=0,
            max_replicas=setting.most,
            space=ConfigurationSpace(gpu_shares=()),
        )
    )
    counts = {"segment": one.instances, "expert": one.replicas}
    nodes = controller.topology.nodes[1:]
    begin = {node.function: setting.start.with_replicas(counts[node.kind]) for node in nodes}
    settle(served.client, OpenFaasPlatform(served.client.url, name, ("admin", password)), begin)
    with worker_processes(1) as pool, cores_busy() as busy:
        warm = [Request(index // 4, request.prompt[::-1], 8) for index, request in enumerate(requests[:WARM])]
        pool.submit(send, served.url, name, warm, time.monotonic()).result()
        begun_s, clock_s = time.monotonic() + 1.0, time.time() - time.monotonic()
        with controlling(controller, setting.window_s, window_s) as reports:
            busy.clear()
            sent = (
                pool.submit(keep_up, served.url, name, requests, begun_s, together, setting.seconds)
                if together
                else pool.submit(send, served.url, name, requests, begun_s)
            )
            streams = sent.result()
            cores = list(busy)
    judged = begun_s + setting.warm_up_s, begun_s + setting.seconds
    row = clients_figures(streams, judged, setting)
    row |= scale_figures(reports, (judged[0] + clock_s, judged[1] + clock_s))
    workers = sum(node.kind == "segment" for node in nodes) * row["instances"] + row["replicas"]
    row |= {"tokens_per_s_a_replica": row["tokens_per_s"] / workers}
    row |= {"cores_p95": float(np.quantile(cores, 0.95)), "cores_mean": statistics.fmean(cores)}
    row |= {
        "different": different(model, requests[: len(streams)], streams, setting.checked),
        "checked": setting.checked,
    }
    return {**row, "windows": [window_of(report, begun_s + clock_s) for report in reports]}


def clients_figures(streams: Sequence[Stream], judged: tuple[float, float], setting: Setting) -> dict[str, Any]:
    """What came of the texts that were due in this time, and of the tokens that came in it."""
    from_s, until_s = judged
    due = [one for one in streams if from_s <= one.due_s < until_s]
    times_s = [np.array(one.tokens_s) for one in streams]
    later_s = np.concatenate([moments[1:] for moments in times_s])
    gaps_s = np.concatenate([np.diff(moments) for moments in times_s])
    inside = (later_s >= from_s) & (later_s < until_s)
    later_s, gaps_s = later_s[inside], gaps_s[inside]
    numbers = ((later_s - from_s) // setting.window_s).astype(int)
    windows = [gaps_s[numbers == number] for number in np.unique(numbers)]
    over = [np.quantile(gaps, 0.95) > setting.tpot_s for gaps in windows if gaps.size >= FEW]
    ttft_s = [one.tokens_s[0] - one.due_s for one in due if one.tokens_s]
    written = sum(from_s <= moment < until_s for one in streams for moment in one.tokens_s)
    return {
        "texts": len(due),
        "failed": sum(one.outcome != WHOLE or len(one.tokens_s) < one.asked for one in streams),
        "reasons": sorted({one.outcome for one in streams} - {WHOLE}),
        "within": statistics.fmean(_within(one, setting) for one in due),
        "tpot_ms_p50": 1000 * float(np.quantile(gaps_s, 0.5)),
        "tpot_ms_p95": 1000 * float(np.quantile(gaps_s, 0.95)),
        "windows_over": float(np.mean(over or [False])),
        "ttft_ms_p50": 1000 * float(np.quantile(ttft_s, 0.5)),
        "ttft_ms_p95": 1000 * float(np.quantile(ttft_s, 0.95)),
        "tokens_per_s": written / (until_s - from_s),
    }


def _within(one: Stream, setting: Setting) -> bool:
    """Whether the text was whole and within both targets, TPOT in the mean of its tokens, as of ``smoe replay``."""
    if one.outcome != WHOLE or not one.tokens_s or one.tokens_s[0] - one.due_s > setting.ttft_s:
        return False
    return one.tokens_s[-1] - one.tokens_s[0] <= setting.tpot_s * (len(one.tokens_s) - 1)


def scale_figures(reports: Sequence[TickReport], judged: tuple[float, float]) -> dict[str, Any]:
    """Costs in an hour, provisioned, by kind of function, and replicas, of the windows that end in this Unix time."""
    inside = [report for report in reports if judged[0] < report.observation.end_s <= judged[1]]
    spent: dict[str, list[float]] = {"segment": [], "expert": []}
    for report in inside:
        for kind, amounts in spent.items():
            nodes = [node.node for node in report.observation.nodes if node.kind == kind]
            costs = [report.cost_by_node[node].provisioned for node in nodes]
            amounts.append(sum(cost or 0.0 for cost in costs) / report.observation.window_s * 3600)
    means = {kind: statistics.fmean(amounts) for kind, amounts in spent.items()}
    scales = [scale_of(report) for report in inside]
    return {
        "cost_segments": means["segment"],
        "cost_experts": means["expert"],
        "cost": sum(means.values()),
        "instances": statistics.fmean(instances for instances, _ in scales),
        "replicas": statistics.fmean(replicas for _, replicas in scales),
        "most": [max(instances for instances, _ in scales), max(replicas for _, replicas in scales)],
        "changes": sum(len(report.applied) for report in inside),
        "failures": sum(len(report.failures) for report in reports),
        "decision_ms": 1000 * statistics.fmean(report.decision_s for report in inside),
    }


def scale_of(report: TickReport) -> tuple[int, int]:
    """Instances, and replicas of all experts together, as configured in a window."""
    counts: dict[str, list[int]] = {"segment": [], "expert": []}
    for node in report.observation.nodes:
        if node.kind in counts and node.configuration is not None:
            counts[node.kind].append(node.configuration.replicas)
    return max(counts["segment"], default=0), sum(counts["expert"])


def window_of(report: TickReport, begun_s: float) -> dict[str, Any]:
    """A window as its policy saw it, and its reason."""
    texts, (instances, replicas) = report.observation.generation, scale_of(report)
    reasons = [one.reason for one in report.decisions if "segment" in one.node]
    return {
        "end_s": round(report.observation.end_s - begun_s, 1),
        "instances": instances,
        "replicas": replicas,
        "texts": None if texts is None else texts.running,
        "waiting": None if texts is None else texts.waiting,
        "tpot_ms_p95": None if texts is None or texts.tpot_p95_s is None else round(1000 * texts.tpot_p95_s, 1),
        "reason": reasons[0] if reasons else "",
    }


def whole_model(folder: Path, shape: dict[str, Any], kv_mib: int) -> WholeModel:
    """The random decoder of this shape, made in ``folder / "random"``, with room for so many MiB of keys and values in
    each segment."""
    build(folder, shape, 0)
    torch.set_num_threads(1)
    model = WholeModel(folder / "random")
    for segment in model.manifest.segments:
        model.programs[segment.id].open_cache(kv_mib << 20)
    return model


def different(model: WholeModel, requests: Sequence[Request], streams: Sequence[Stream], count: int) -> int:
    """How many of ``count`` whole texts, spread over the run, one process writes otherwise."""
    whole = [pair for pair in zip(requests, streams, strict=True) if pair[1].outcome == WHOLE]
    wrong = 0
    for place in np.linspace(0, len(whole) - 1, count).astype(int):
        request, stream = whole[place]
        _, (new,) = in_one_process(model, [request.prompt], request.answer)
        wrong += stream.text.split() != [f"t{token}" for token in new]
    return wrong
