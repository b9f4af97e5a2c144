"""What calls use within passes: how it is counted, and what a profile makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.monitor.scrape import parse_exposition
from simulation.latency.contract import NodeCost
from simulation.profiles.fit.fitting import fit
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.counters import Counted
from simulation.profiles.measure.in_pass import by_node, rows_between, spent
from simulation.profiles.measure.measurement_plan import NodeClass, ProfileSettings
from simulation.profiles.model.profiled import FittedLatencyModel
from tests.unit.simulation.profiles import truth

SETTINGS = ProfileSettings()
CLASSES = (NodeClass("segment-0", ("segment-0",)), NodeClass("expert-0-0", ("expert-0-0", "expert-0-1")))
COST = NodeCost("expert", 1e6, 0.0, 0.0, 1e6, 1e6, 1e3, 1e3)


class Replica:
    def __init__(self, cpu_s: float | None) -> None:
        self.cpu_s = cpu_s

    def read(self) -> Counted:
        return Counted(self.cpu_s, None, None, None, None)


def metrics(calls: int) -> str:
    """What an ingress states that has sent so many calls of ten tokens to each node, a tenth of them in vain."""
    nodes = [node for one in CLASSES for node in one.members]
    lines = ["# TYPE smoe_node_calls_total counter", "# TYPE smoe_node_tokens_total counter"]
    for node in nodes:
        for code, count in (("200", 0.9 * calls), ("503", 0.1 * calls)):
            lines.append(f'smoe_node_calls_total{{pipeline="p",node="{node}",code="{code}"}} {count}')
        lines.append(f'smoe_node_tokens_total{{pipeline="p",node="{node}"}} {10 * calls}')
    return "\n".join(lines) + "\n"


def measured(used_s: dict[str, float | None]) -> list[Row]:
    """Rows of 100 calls to each node, which used so many CPU seconds meanwhile."""
    replicas = {node: Replica(None if more_s is None else 5.0) for node, more_s in used_s.items()}
    before = spent(replicas, parse_exposition(metrics(20)))
    for node, more_s in used_s.items():
        replicas[node].cpu_s = None if more_s is None else 5.0 + more_s
    return rows_between(before, spent(replicas, parse_exposition(metrics(120))), CLASSES, 2, 0.1, SETTINGS)


def test_a_kinds_cpu_seconds_are_shared_among_the_calls_of_all_its_members() -> None:
    segment, expert = measured({"segment-0": 0.2, "expert-0-0": 0.04, "expert-0-1": 0.06})
    assert (segment.node, segment.n, segment.tokens, segment.repeat) == ("segment-0", 100, 10, 2)
    assert segment.cpu_s_per_call == pytest.approx(0.002) and segment.others_cores == 0.1
    assert (expert.node, expert.n, expert.family) == ("expert-0-0", 200, "in_pass")
    assert expert.cpu_s_per_call == pytest.approx(0.0005)


def test_a_kind_of_which_the_kernel_does_not_count_a_member_has_no_row() -> None:
    rows = measured({"segment-0": 0.2, "expert-0-0": 0.04, "expert-0-1": None})
    assert [row.node for row in rows] == ["segment-0"]


def test_a_kind_that_was_not_called_has_no_row() -> None:
    nothing = spent({"segment-0": Replica(1.0)}, parse_exposition(metrics(20)))
    assert rows_between(nothing, nothing, CLASSES, 0, 0.0, SETTINGS) == []


def test_a_counter_is_summed_over_its_other_labels() -> None:
    calls = by_node(parse_exposition(metrics(10)), "smoe_node_calls_total")
    assert calls == {"segment-0": 10, "expert-0-0": 10, "expert-0-1": 10}


def model(rows: list[Row]) -> FittedLatencyModel:
    fitted = fit(rows, truth.TICK_S)
    return FittedLatencyModel("made", {COST: fitted.nodes["expert-0-0"]}, fitted.tick_s)


@pytest.mark.parametrize("part", [0.5, 1.2])
def test_calls_within_passes_use_what_was_counted_there(part: float) -> None:
    law = truth.Truth()
    rows = truth.rows(law)
    within = replace(
        truth.BLANK, family="in_pass", tokens=32, mean_s=None, cpu_s_per_call=part * law.work_s(32), others_cores=0.0
    )
    before, after = model(rows), model([*rows, within])
    for tokens in (8, 32, 128):
        alone_s = float(before.work_seconds(COST, tokens))
        assert float(after.work_seconds(COST, tokens)) == pytest.approx(
            alone_s - (1 - part) * law.work_s(tokens), rel=1e-3
        )
        used_s = float(after.utilisation(COST, tokens, 1.0, 0.0) * after.seconds(COST, tokens, 1.0, 0.0))
        assert used_s == pytest.approx(part * law.work_s(tokens), rel=1e-3)
    rounds = np.array([1.0, 4.0])
    assert after.core_speedup(COST, 32, 1.0, 0.0, rounds) == pytest.approx(
        before.core_speedup(COST, 32, 1.0, 0.0, rounds)
    )  # of replicas that are never idle nothing else was learnt
