"""Which layer ``benchmarks.motivation`` calls the slowest, where it is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from numpy.typing import ArrayLike

from benchmarks.motivation import FIXED, rows_of, summary, windows_of
from simulation.arrays import Floats
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import NodeCost
from tests.unit.simulation.engine.builders import COST, Arithmetic, workload
from traces.generate import synthetic


@dataclass(frozen=True, eq=False)
class ByFlops(Arithmetic):
    """Seconds in proportion to a node's FLOPs per token."""

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return super().seconds(node, tokens, cpu_cores, gpu_share) * node.flops_per_token / COST.flops_per_token


@pytest.mark.parametrize("slow", [0, 1])
def test_the_bottleneck_is_the_layer_whose_experts_are_five_times_as_slow(slow: int) -> None:
    plain = workload((2, 2), ByFlops())
    costs = {
        node.id: replace(plain.costs[node.id], flops_per_token=(5.0 if node.layer == slow else 1.0) * 1e6)
        for node in plain.experts
    }
    slowed = replace(plain, costs={**plain.costs, **costs})
    requests = draw_requests(slowed, synthetic(60, 12.0, 1.0, 3).arrival_s, seed=0)
    simulation = Simulation(slowed, requests, slowed.initial(FIXED), seed=0)
    experts, layers = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, window in enumerate(windows_of(simulation, 4.0, 12.0)):
        rows = rows_of(slowed, window, number)
        experts, layers = experts + rows[0], layers + rows[1]
    assert [max(layers[2 * n : 2 * n + 2], key=lambda row: row["p95_ms"])["layer"] for n in range(3)] == [slow] * 3
    figures = summary(experts, layers)
    assert (figures["windows"], figures["bottlenecks"], figures["bottleneck_moves"]) == (3, 1, 0)
