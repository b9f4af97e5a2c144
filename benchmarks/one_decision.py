"""All that one decision of the learnt policy is made of (Figures 4 to 6): ``python -m benchmarks.one_decision``.

The controller's own loop runs over a simulated episode under the learnt policy, with the function logger on. The
window in which it changes most experts is stored as ``decision.json``: what was seen, what the state is (every number
with its name), the embeddings of the DAGNN and h_G, the pointer's weights, the scores of one expert over Φ, the
decisions with the best alternatives, what the decision limits made of them and what was ordered. Simulated; the time
of deciding is of this machine. The last line is one JSON object with the main numbers.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.parquet as pq
import torch

from autoscaler.contract import Topology
from autoscaler.logger import FunctionLogger
from benchmarks.harness.options import benchmark, out_option, pattern_option, seed_option, workload_option
from benchmarks.harness.report import print_result, print_table
from evaluation.comparison.episode import Work, prepare
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.learnt_files import published_actor
from evaluation.comparison.policies import limits_of, policy_of
from rl.agent.actor import Actor
from rl.agent.contract import Batch, State
from rl.agent.encoder import padded
from rl.agent.explain import ExpertReasons, explain
from rl.agent.export import load, made
from rl.agent.policy import LearntPolicy
from rl.agent.siso import Cliques
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features import Encoder as StateEncoder
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.simulation import Simulation

DIGITS = 4
BEST = 5


def episode(work: Work, policy: LearntPolicy, window_s: float, folder: Path) -> list[Step]:
    """The controller's loop over the episode, logged to ``folder``."""
    simulation = Simulation(work.workload, work.requests, work.start, seed=work.group.seed)
    with FunctionLogger(folder, {"simulated": True}, work.workload.slo_s) as logger:
        return simulate_policy(
            simulation, policy, limits_of(work.workload), window_s=window_s, until_s=work.arrivals.seconds,
            logger=logger,
        )  # fmt: skip


def state_after(encoder: StateEncoder, steps: list[Step]) -> State:
    """The state in which the last of ``steps`` was decided."""
    memory, state = None, None
    for step in steps:
        if not step.report.observation.stale and step.report.observation.requests is not None:
            state, memory = encoder.encode(step.report.observation, memory)
    if state is None:
        raise click.ClickException("no window of the episode was observed")
    return state


def generations(topology: Topology) -> list[list[str]]:
    """Topological batches B_0, B_1 …: node ids whose predecessors are all in earlier ones."""
    before: dict[str, set[str]] = {node.id: set() for node in topology.nodes if node.kind != "ingress"}
    for source, target in topology.edges:
        before[target].add(source)
    batches: list[list[str]] = []
    done: set[str] = set()
    while len(done) < len(before):
        batches.append([node for node, needs in before.items() if node not in done and needs <= done])
        done.update(batches[-1])
    return batches


@torch.no_grad()
def embeddings(actor: Actor, batch: Batch) -> dict[str, Any]:
    """h^(L) of segments and experts, and the read-out h_G."""
    propagation, mask = actor.encoder.propagation, padded(batch.space.mask)
    if propagation is None:
        raise click.ClickException("the actor has no DAGNN")
    experts = actor.encoder.of_expert(batch.experts)
    segments, hidden = propagation.dagnn(propagation.of_segment(batch.segments), experts, mask)
    _, read_out = propagation(batch, experts, mask)
    width = actor.settings.width
    return {
        "segments": plain(segments[0, :, -width:]),
        "experts": plain(hidden[0, :, :, -width:]),
        "read_out": plain(read_out[0]),
    }


@torch.no_grad()
def scores(actor: Actor, encoder: StateEncoder, batch: Batch, row: int) -> dict[str, Any]:
    """g of one expert over replicas × resource and over replicas × memory, each at the best of the other axes."""
    cliques = actor.scores(batch, actor.decide(batch))
    if not isinstance(cliques, Cliques):
        raise click.ClickException("the actor does not score by cliques")
    _, resources, replicas, concurrencies = encoder.configuration_index.sizes
    compute = cliques.compute[row].view(replicas, resources, concurrencies)
    memory = cliques.memory[row]
    space = encoder.configuration_index.space
    return {
        "resources": [*(f"{cores:g} cores" for cores in space.cpu_cores), *(f"{s:g} GPU" for s in space.gpu_shares)],
        "replicas": list(range(space.replicas_min, space.replicas_max + 1)),
        "concurrencies": list(range(space.concurrency_min, space.concurrency_max + 1)),
        "by_resource": plain((compute.amax(-1) + memory.amax(-1, keepdim=True)).T),
        "by_concurrency": plain((compute.amax(1) + memory.amax(-1, keepdim=True)).T),
    }


def plain(values: Any) -> Any:
    """Nested lists of rounded numbers."""
    return np.round(np.asarray(values, dtype=np.float64), DIGITS).tolist()


def logged(folder: Path) -> dict[str, dict[str, int]]:
    """Kind of file → rows and columns of all windows."""
    entries: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("*.parquet")):
        metadata = pq.read_metadata(path)
        entry = entries.setdefault(path.name.partition("-")[0], {"rows": 0, "columns": metadata.num_columns})
        entry["rows"] += metadata.num_rows
    return entries


def flow(work: Work, step: Step, log: dict[str, dict[str, int]], steps: int) -> dict[str, Any]:
    """What passes between the five parts of the paper's Figure 4 in this window."""
    report = step.report
    changes = [decision for decision in report.decisions if decision.changes]
    sample = max(changes, key=lambda one: one.target.replicas, default=report.decisions[0])
    p95_s = step.window.quantile_s(0.95)
    limited = sum(bool(decision.limits_hit) for decision in report.decisions)
    return {
        "log": log,
        "logged_windows": steps,
        "observed_nodes": len(report.observation.nodes),
        "requests": int(step.window.finished.size),
        "p95_ms": None if p95_s is None else round(1000 * p95_s, 1),
        "slo_ms": 1000 * work.workload.slo_s,
        "decisions": len(report.decisions),
        "changes": len(changes),
        "limited": limited,
        "applied": len(report.applied),
        "decision_ms": round(1000 * report.decision_s, 1),
        "sample": {"function": sample.function, "present": asdict(sample.present), "target": asdict(sample.target)},
    }


def described(reasons: list[ExpertReasons]) -> list[dict[str, Any]]:
    """As JSON, numbers rounded."""
    rows: list[dict[str, Any]] = json.loads(json.dumps([asdict(row) for row in reasons]))
    for row in rows:
        for part in (row, row["chosen"], *row["best"]):
            part.update({name: round(value, 6) for name, value in part.items() if isinstance(value, float)})
    return rows


def document(work: Work, policy: LearntPolicy, actor_file: Path, steps: list[Step], at: int) -> dict[str, Any]:
    """Everything about the decision at the end of window ``at``."""
    actor = load(actor_file)
    if not isinstance(actor, Actor):
        raise click.ClickException(f"{actor_file} is of the variant {actor.settings.arm}, which has no DAGNN")
    encoder = policy.encoder
    state = state_after(encoder, steps[: at + 1])
    batch = Batch.of(encoder.space, [state])
    reasons = explain(actor, encoder, state, BEST)
    busiest = max(range(len(reasons)), key=lambda row: reasons[row].pointer * len(state.experts[reasons[row].layer]))
    topology = work.workload.topology
    stored = made(actor_file)
    return {
        "workload": work.workload.name,
        **{"pattern": work.group.pattern, "seed": work.group.seed, "window": at, "simulated": True},
        "arrivals": work.arrivals.source,
        "actor": {
            "file": actor_file.name, "arm": actor.settings.arm, "width": actor.settings.width,
            "dagnn_layers": actor.settings.dagnn_layers, "code_sha256": stored.get("code_sha256"),
            "parameters": sum(weight.numel() for weight in actor.parameters()),
        },
        "configurations": len(encoder.configuration_index.space),
        "topology": {
            "layers": topology.layers, "experts": [len(topology.experts(layer)) for layer in range(topology.layers)],
            "edges": len([edge for edge in topology.edges if "ingress" not in edge]), "batches": generations(topology),
        },
        "features": {
            "node": [feature.name for feature in NODE_FEATURES],
            "pipeline": [feature.name for feature in PIPELINE_FEATURES],
        },
        "state": {name: plain(getattr(state, name)) for name in ("segments", "experts", "pipeline")},
        "embeddings": embeddings(actor, batch),
        "experts": described(reasons),
        "scored": {"row": busiest, **scores(actor, encoder, batch, busiest)},
    }  # fmt: skip


@benchmark
@workload_option("bert-4")
@pattern_option
@seed_option
@click.option("--seconds", type=click.FloatRange(180.0), default=600.0, help="Length of the episode.")
@out_option("out/one-decision", "Folder of decision.json.")
def main(name: str, pattern: str, seed: int, seconds: float, out: Path) -> None:
    torch.set_num_threads(1)
    grid = Grid((name,), (pattern,), (0,), ("smoe",), (seed,), seconds=seconds)
    group = Group(name, pattern, 0, seed)
    work = prepare(grid, group)
    policy = policy_of("smoe", work.workload, grid, group)
    if not isinstance(policy, LearntPolicy):
        raise click.ClickException("the policy smoe is not the learnt one")
    with tempfile.TemporaryDirectory() as folder:
        steps = episode(work, policy, grid.window_s, Path(folder))
        log = logged(Path(folder))
    counted = range(grid.warm_up_windows, len(steps))
    at = max(counted, key=lambda number: sum(decision.changes for decision in steps[number].report.decisions))
    stored = document(work, policy, published_actor(name, "provisioned"), steps, at)
    stored["flow"] = flow(work, steps[at], log, len(steps))
    out.mkdir(parents=True, exist_ok=True)
    (out / "decision.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    short = {key: value for key, value in stored["flow"].items() if isinstance(value, int | float)}
    numbers = [(key.replace("_", " "), value) for key, value in short.items()]
    print_table(f"simulated: {name}, window {at}", ("what", "number"), numbers)
    print_result({"workload": name, "window": at, **short})


if __name__ == "__main__":
    main()
