"""How long a decision takes: ``python -m benchmarks.decision``.

One decision is all that the controller does between an observation and its proposal: encode the observation
(``rl.features``), make tensors of it, and decide all layers one after the other over the whole of Φ (203,520
configurations an expert), on one thread. Not included are reading metrics, decision limits and orders. The pipeline
is the paper's ``bert-8`` (12 layers of 8 experts) after some simulated windows, and the same blown up to 24 layers of
64 experts. Arms of the ablation are timed in turns with the full agent, so that other work on the machine slows all
of them. Weights are drawn at random: the time does not depend on them. ``cpu`` is processor time, which other work
lengthens least. The last line is one JSON object.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import torch

from autoscaler.contract import Memory, Observation
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_result, print_table
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch
from rl.agent.settings import Arm, NetworkSettings
from rl.agent.variants import ARMS, actor
from rl.agent.windows import START
from rl.episodes import Clip, Episode, episode_of, work_of
from rl.episodes.sizes import resized
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder
from simulation.workloads.paper import paper_workload

WORKLOAD = "bert-8"
LARGE = (24, 64)
WINDOWS = 3
TARGET_MS, TARGET_LARGE_MS = 15.0, 150.0
SLOWER = 10
"""The full-joint variant is timed so many times less often."""


@dataclass
class Times:
    """Milliseconds of each repeat."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    deciding: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float]:
        return {
            "ms_p50": statistics.median(self.wall),
            "ms_p99": sorted(self.wall)[max(0, -(-99 * len(self.wall) // 100) - 1)],
            "cpu_ms_p50": statistics.median(self.cpu),
            "decide_ms_p50": statistics.median(self.deciding),
            "repeats": len(self.wall),
        }


def simulated_episode(layers: int, experts: int, seed: int) -> Episode:
    """An episode of the workload, of another size where asked for, after some windows."""
    clip = Clip(WORKLOAD, "bursty", seed, mean_rps=20.0, seconds=30.0 * (WINDOWS + 1))
    base = paper_workload(WORKLOAD)
    same = layers == base.topology.layers and experts == len(base.topology.experts(0))
    workload = None if same else resized(base, layers, experts, seed)
    episode = episode_of(clip, workload=workload, start=work_of(clip, workload=workload).workload.initial(START))
    for _ in range(WINDOWS - 1):
        episode.step(episode.state().present)
    return episode


def decide(network: SisoActor, encoder: Encoder, observation: Observation, memory: Memory, times: Times) -> None:
    """One decision, timed."""
    began, began_cpu = time.perf_counter(), time.process_time()
    state, _ = encoder.encode(observation, memory)
    batch = Batch.of(encoder.space, [state])
    encoded = time.perf_counter()
    network.decide(batch)
    ended = time.perf_counter()
    times.cpu.append((time.process_time() - began_cpu) * 1000)
    times.wall.append((ended - began) * 1000)
    times.deciding.append((ended - encoded) * 1000)


def measure(episode: Episode, variants: Sequence[Arm], repeats: int) -> dict[str, dict[str, float]]:
    """Arm → its times, all on the same observation, in turns."""
    layers, experts = episode.encoder.configuration_index.mask.shape
    networks = {}
    for variant in variants:
        sizes = NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES), arm=variant, layers=layers, experts=experts)
        networks[variant] = actor(sizes).freeze()  # as the controller serves it
    times = {variant: Times() for variant in variants}
    _, memory = episode.encoder.encode(episode.observation, None)
    for network in networks.values():
        for _ in range(2):  # what is made once: compiled loops, rows of Φ
            decide(network, episode.encoder, episode.observation, memory, Times())
    for turn in range(repeats):
        for variant, network in networks.items():
            if variant != "full-joint" or turn % SLOWER == 0:
                decide(network, episode.encoder, episode.observation, memory, times[variant])
    return {variant: timed.row() for variant, timed in times.items()}


HEADS = ("variant", "p50 ms", "p99 ms", "of which deciding", "processor ms", "repeats")


def table_row(variant: str, row: dict[str, float]) -> tuple[object, ...]:
    cells = (row["ms_p50"], row["ms_p99"], row["decide_ms_p50"], row["cpu_ms_p50"])
    return (variant, *(f"{cell:.2f}" for cell in cells), int(row["repeats"]))


@benchmark
@click.option("--repeats", type=AT_LEAST_1, default=200, help="Decisions of each variant.")
@seed_option
def main(repeats: int, seed: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    small, large = simulated_episode(12, 8, seed), simulated_episode(*LARGE, seed)
    rows = measure(small, ARMS, repeats)
    blown_up = measure(large, ("full",), max(1, repeats // 4))["full"]
    experts, many = (int(episode.encoder.configuration_index.mask.sum()) for episode in (small, large))
    configurations = len(small.encoder.configuration_index.space)
    shown = [table_row(variant, row) for variant, row in rows.items()]
    shown.append(table_row(f"full, {many} experts", blown_up))
    title = f"{experts} experts, {configurations:,} configurations each, one thread"
    print_table(title, HEADS, shown, width=110, stdout=True)
    quickest = min(rows, key=lambda variant: rows[variant]["ms_p50"])
    result: dict[str, Any] = {
        **rows["full"],
        "experts": experts,
        "configurations": configurations,
        "includes": "encoding of the observation, tensors, decisions of all layers",
        "arms": rows,
        "quickest": quickest,
        "large": {**blown_up, "experts": many},
        "target_ms": TARGET_MS,
        "target_large_ms": TARGET_LARGE_MS,
        "met": rows["full"]["ms_p50"] <= TARGET_MS and blown_up["ms_p50"] <= TARGET_LARGE_MS,
        "least_of_all_arms": quickest == "full",
    }
    print_result(result)


if __name__ == "__main__":
    main()
