"""Janus next to HPA and constants on a running decoder: ``python -m benchmarks.decoder_live``.

A random decoder of three segments and two layers of four experts on the embedded gateway, every replica limited to
``--cpu-scale`` of a core, so that replicas add throughput as long as all together do not use up the machine's cores
(``cores``: what of them was busy, 95th percentile of seconds). Requests of token traces arrive at their times, lengths
divided (``benchmarks/decoder_live/loads.py``); of the load ``batch`` so many are under way all the time. Policies scale
segments and experts by the controller of ``smoe autoscale``, in turns; all but constants begin with ``--begin``. The
first ``--warm-up`` seconds are not judged.

TPOT is of single intervals, as a controller sees it; ``within``: texts within both targets, TPOT in their mean.
``windows_over``: windows with tokens whose P95 was over the target. Costs are those of provisioned replicas in an hour;
``different``: of ``--checked`` texts of a run those that the same model writes otherwise in one process. Last line:
``cells`` (load, seed, policy, figures, ``windows`` as the policy saw them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from autoscaler.contract import Configuration
from benchmarks.closed_loop.contenders import turns
from benchmarks.decoder_live.loads import LOADS, SHAPE, requests_of
from benchmarks.decoder_live.runs import Setting, contender, measured, whole_model
from benchmarks.harness.options import AT_LEAST_1, benchmark, data_option, listed
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import local_gateway, running_pipeline
from smoe.deployment import DeploymentSettings

KV_MB = 16
INGRESS_CORES = 1.0
"""Real cores of the ingress: it is not what is compared."""


def run_all(
    folder: Path,
    data: Path | None,
    loads: Sequence[tuple[str, int]],
    policies: Sequence[str],
    begin: tuple[int, int],
    cpu_scale: float,
    setting: Setting,
    show: Callable[[str, float], None],
) -> list[dict[str, Any]]:
    """A row for each load and policy; whoever comes first meets a pipeline that has just been started, each in turn."""
    model = whole_model(folder, SHAPE, KV_MB)
    deployment = DeploymentSettings(
        kv_mib=KV_MB, ingress_cpu_cores=INGRESS_CORES / cpu_scale, max_replicas=setting.most
    )
    cells: list[dict[str, Any]] = []
    gateway = local_gateway(folder / "state", cpu_scale=cpu_scale)
    with running_pipeline(gateway, deployment, str(folder / "random")) as served:
        for turn, (name, seed) in enumerate(loads):
            requests = requests_of(LOADS[name], data, seed, setting.seconds)
            for policy in turns(policies, turn):
                show(f"{name}, seed {seed}: {policy}", len(cells))
                one = contender(policy, begin, setting.window_s)
                row = measured(served, model, one, setting, requests, LOADS[name].together)
                cells.append({"load": name, "seed": seed, "policy": policy, **row})
                click.echo(json.dumps({key: value for key, value in cells[-1].items() if key != "windows"}), err=True)
    return cells


@benchmark
@data_option
@click.option("--loads", callback=listed(str, LOADS), default="conversation,code", help="Comma list.")
@click.option("--seeds", callback=listed(int), default="1,2", help="Parts of the traces; 0 is for tuning.")
@click.option("--policies", callback=listed(), default="janus,hpa,constant-3-2", help="Comma list.")
@click.option("--begin", callback=listed(int), default="2,1", help="Instances, and replicas of every expert.")
@click.option("--cpu-scale", type=click.FloatRange(0.01, 1), default=0.06, help="Cores of every replica.")
@click.option("--seconds", type=click.FloatRange(10), default=120.0, help="Length of a run.")
@click.option("--warm-up", "warm_up_s", type=click.FloatRange(0), default=20.0, help="Of it, seconds not judged.")
@click.option("--interval", "window_s", type=click.FloatRange(1), default=5.0, help="Seconds between decisions.")
@click.option("--ttft-ms", type=click.FloatRange(1), default=2500.0, help="Target of the time to the first token.")
@click.option("--tpot-ms", type=click.FloatRange(1), default=250.0, help="Target of the time per output token.")
@click.option("--most", type=AT_LEAST_1, default=6, help="Replicas of a function.")
@click.option("--checked", type=AT_LEAST_1, default=20, help="Texts of a run that are computed again.")
def main(
    data: Path | None,
    loads: tuple[str, ...],
    seeds: tuple[int, ...],
    policies: tuple[str, ...],
    begin: tuple[int, int],
    cpu_scale: float,
    ttft_ms: float,
    tpot_ms: float,
    **options: Any,
) -> None:
    start = Configuration(memory_mb=256, cpu_cores=1.0, gpu_share=0.0, replicas=1, concurrency=10)
    setting = Setting(ttft_s=ttft_ms / 1000, tpot_s=tpot_ms / 1000, start=start, **options)
    parts = [(name, seed) for seed in seeds for name in loads]
    with run_folder("smoe-decoder-live-") as folder, progress(len(parts) * len(policies)) as show:
        cells = run_all(folder, data, parts, policies, begin, cpu_scale, setting, show)
    print_table("policies on a running decoder", [head for head, _ in HEADS], [_line(cell) for cell in cells])
    print_result({"tpot_ms": tpot_ms, "ttft_ms": ttft_ms, "cells": cells})


HEADS = (
    ("load", "{load} {seed}"), ("policy", "{policy}"), ("TPOT P50, P95, ms", "{tpot_ms_p50:.0f}, {tpot_ms_p95:.0f}"),
    ("windows over", "{windows_over:.0%}"), ("within", "{within:.1%}"), ("TTFT P95, ms", "{ttft_ms_p95:.0f}"),
    ("tokens/s, a replica", "{tokens_per_s:.1f}, {tokens_per_s_a_replica:.2f}"),
    ("instances, experts", "{instances:.2f}, {replicas:.1f}"),
    ("cost: segments, experts, all", "{cost_segments:.3f}, {cost_experts:.3f}, {cost:.3f}"),
    ("changes", "{changes}"), ("failed, different", "{failed}, {different}"), ("cores", "{cores_p95:.2f}"),
)  # fmt: skip


def _line(cell: dict[str, Any]) -> list[str]:
    return [form.format(**cell) for _, form in HEADS]


if __name__ == "__main__":
    main()
