"""Lone requests below a CPU limit: what is counted of their calls, and the table of both sides."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.fidelity.lone import CPU_SCALE, configurations, look, main, row_of
from simulation.profiles.measure.counters import ReplicaCounters


def test_only_experts_are_limited() -> None:
    nodes = [SimpleNamespace(function=kind[0], kind=kind) for kind in ("ingress", "segment", "expert")]
    topology: Any = SimpleNamespace(nodes=nodes)
    given = configurations(topology, 0.012)
    assert {name: round(one.cpu_cores * CPU_SCALE, 6) for name, one in given.items()} == {"s": 1.0, "e": 0.012}


def test_a_row_has_quantiles_of_requests_and_means_of_calls() -> None:
    calls = np.array([[1.0, 2.0, 3.0, 6.0], [0.0, 1.0, 1.0, 2.0], [0.0, 1.9, 2.1, 76.0]])
    row = row_of(0.012, "live", np.arange(0.0, 101.0), calls)
    assert row == {
        "cores": 0.012, "side": "live", "mean_ms": 50.0, "p10_ms": 10.0, "p50_ms": 50.0, "p95_ms": 95.0,
        "call_cpu_ms": 3.0, "stops": 1.0, "waited": 0.5, "wait_ms": 20.0,
    }  # fmt: skip
    assert "waited" not in row_of(0.012, "simulated", np.arange(3.0), None)


def test_what_lies_between_two_looks_is_of_the_calls_and_what_is_not_counted_ends_the_run(tmp_path: Path) -> None:
    def counters(cpu_ns: int, stops: int, throttled_ns: int) -> ReplicaCounters:
        for name, text in {
            "proc/7/cgroup": "1:cpu:/a\n2:cpuacct:/a\n",
            "sys/cpu/a/cpu.stat": f"nr_periods 9\nnr_throttled {stops}\nthrottled_time {throttled_ns}\n",
            "sys/cpuacct/a/cpuacct.usage": str(cpu_ns),
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return ReplicaCounters(7, tmp_path / "sys", tmp_path / "proc")

    before = look([counters(1_000_000, 3, 0)])
    more = look([counters(2_500_000, 5, 70_000_000)]) - before
    assert more[:, 0] == pytest.approx((1.5, 2, 70))
    (tmp_path / "sys/cpu/a/cpu.stat").unlink()
    with pytest.raises(click.ClickException, match="does not count CPU seconds and stops"):
        look([ReplicaCounters(7, tmp_path / "sys", tmp_path / "proc")])


@pytest.mark.parametrize("cores", ["", "0", "1,2", "nan"])
def test_cores_are_above_0_and_at_most_1(cores: str) -> None:
    result = CliRunner().invoke(main, ["--cores", cores])
    assert result.exit_code == 2
    assert "above 0, at most 1" in result.output
