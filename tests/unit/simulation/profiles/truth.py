"""A made machine whose latencies follow a known law: what a fit of its rows has to find again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from autoscaler.topology import load_topology
from moe.manifest import Manifest, load
from simulation.profiles.fit.rows import QUANTILES, Row
from simulation.profiles.measure.machine import Machine
from simulation.profiles.measure.measurement_plan import node_classes
from simulation.profiles.measure.throttle import PERIOD_S, busy_call_s, idle_call_s, limit_of
from simulation.profiles.model.storage import Metadata, Profile

TICK_S = 0.004
TOKENS = (1, 8, 32, 128, 512)
SHARES = (0.06, 0.12, 0.25, 0.5, 1.0)
CALLS = (1, 2, 4, 8)
MACHINE = Machine("Made CPU @ 2.50GHz", 2, 16000, "6.1.0", 1, TICK_S)

BLANK = Row(
    node="expert-0-0",
    family="alone",
    loop="paced",
    tokens=1,
    texts=0,
    cpu_cores=1.0,
    share=1.0,
    period_s=None,
    memory_mib=1024,
    concurrency=1,
    rate_rps=0.0,
    seed=0,
    repeat=0,
    feasible=True,
    note="",
    n=100,
    errors=0,
    seconds=1.0,
    waiting_s_per_call=0.0,
    others_cores=0.0,
)


@dataclass(frozen=True)
class Truth:
    """Seconds: CPU work of a call, what it waits apart from its core, and what each further call of a batch adds."""

    fixed_s: float = 0.0006
    token_s: float = 8e-6
    apart_s: float = 0.0003
    batch_part: float = 0.7

    def work_s(self, tokens: float) -> float:
        return self.fixed_s + self.token_s * tokens

    def together_s(self, tokens: float, calls: int) -> float:
        return self.work_s(tokens) * (1 + self.batch_part * (calls - 1))


def row(
    truth: Truth, family: str, tokens: int, share: float, calls: int, scatter: np.random.Generator | None,
    period_s: float = PERIOD_S,
) -> Row:  # fmt: skip
    """One point of the made machine, measured without other processes about."""
    limit = limit_of(share, TICK_S, period_s)
    noise = 1.0 if scatter is None else float(scatter.lognormal(0.0, 0.02))
    if family == "alone":
        seconds = truth.apart_s + idle_call_s(truth.work_s(tokens) * noise, limit)
        cpu_s = truth.work_s(tokens) * noise
    else:
        round_s = truth.together_s(tokens, calls) * noise
        seconds = busy_call_s(round_s, limit, 100)
        cpu_s = round_s / calls
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    return replace(
        BLANK,
        family=family,
        loop="paced" if family == "alone" else "closed",
        tokens=tokens,
        share=share,
        cpu_cores=share,
        period_s=limit.period_s,
        concurrency=calls,
        mean_s=float(seconds.mean()),
        p50_s=float(p50),
        p95_s=float(p95),
        p99_s=float(p99),
        sd_s=float(seconds.std()),
        quantiles_s=tuple(float(x) for x in np.quantile(seconds, np.linspace(0, 1, QUANTILES))),
        cpu_s_per_call=cpu_s,
    )


def rows(truth: Truth, seed: int | None = None, repeats: int = 1, period_s: float = PERIOD_S) -> list[Row]:
    """A whole profile of the made machine; ``seed`` None: without scatter; ``period_s``: that limits are asked for
    with."""
    scatter = None if seed is None else np.random.default_rng(seed)
    rows = []
    for repeat in range(repeats):
        made = [row(truth, "alone", tokens, share, 1, scatter, period_s) for tokens, share in product(TOKENS, SHARES)]
        made += [row(truth, "busy", tokens, share, 1, scatter, period_s) for tokens, share in product(TOKENS, SHARES)]
        made += [
            row(truth, "concurrency", tokens, share, calls, scatter, period_s)
            for tokens, share, calls in product((8, 32, 128), (0.12, 0.5, 1.0), CALLS[1:])
        ]
        rows += [replace(one, repeat=repeat) for one in made]
    return rows


def profile(rows: list[Row], classes: dict[str, tuple[str, ...]] | None = None) -> Profile:
    """Rows with the facts of the made machine."""
    return Profile(
        Metadata(
            pipeline="made",
            manifest_sha256="ab" * 32,
            classes=classes or {"expert-0-0": ("expert-0-0", "expert-0-1")},
            machine=MACHINE,
            cpu_scale=1.0,
            versions={"python": "3.11"},
            settings={"seed": 0},
            begun="2026-01-01T00:00:00+00:00",
            ended="2026-01-01T00:10:00+00:00",
            load_average=(0.1, 0.2, 0.3),
        ),
        tuple(rows),
    )


PASSES = tuple(
    replace(BLANK, node="ingress", family="pass", tokens=tokens, cpu_s_per_call=0.01, node_calls=20)
    for tokens in (1, 8, 64)
)
"""Of an ingress that takes a hundredth of a second a pass."""


def of_nodes(manifest: Manifest, change_s: float = 0.05, more: Sequence[Row] = ()) -> Profile:
    """As if every node of the pipeline had been measured on the made machine; starts, drains and raised limits take
    ``change_s``."""
    classes = {entry.node: entry.members for entry in node_classes(manifest)}
    measured = [replace(row, node=node) for node in classes for row in rows(Truth())]
    kinds = ("cold_start", "drain", "cpu_up")
    measured += [replace(BLANK, family=kind, tokens=0, p50_s=change_s) for kind in kinds]
    return profile([*measured, *more], classes)


def of_folder(folder: Path, change_s: float = 0.05, more: Sequence[Row] = ()) -> Profile:
    """The same as a profile of the pipeline in ``folder``, which commands take for its own."""
    made, topology = of_nodes(load(folder, verify=False), change_s, more), load_topology(folder)
    named = replace(made.metadata, pipeline=topology.pipeline, manifest_sha256=topology.manifest_sha256)
    return replace(made, metadata=named)
