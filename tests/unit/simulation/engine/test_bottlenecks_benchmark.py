"""Which layer the bottleneck benchmark names, where it is known beforehand."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from benchmarks.bottlenecks import layer_tails, main
from simulation.arrays import Floats
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
    found = layer_tails(replace(plain, costs={**plain.costs, **costs}), synthetic(60, 12.0, 1.0, 3), 4.0, 0)
    assert found.shape == (3, 2)
    assert (np.nanargmax(found, axis=1) == slow).all()


def test_a_trace_becomes_a_picture_and_a_count_of_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "trace.csv", tmp_path / "deep" / "picture.png"
    file.write_text("arrival_s\n" + "".join(f"{place / 4}\n" for place in range(120)))
    assert main([str(file), "--out", str(out), "--rate", "4", "--minutes", "0.5", "--window", "5"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["windows"] == 6 and found["moves"] <= 5 and found["requests"] == 120
    assert sum(found["layers_that_were_bottleneck"].values()) == 6
    assert out.stat().st_size > 10_000
    file.write_text("arrival_s\n3\n1\n")
    assert main([str(file), "--out", str(out)]) == 1
