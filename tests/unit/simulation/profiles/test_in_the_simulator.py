"""A fitted model is taken by a workload and by the simulator's tables as the protocol promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoscaler.contract import Configuration
from moe.manifest import load
from simulation.engine.tables import ResourceTables
from simulation.profiles.model.profiled import fitted_model, lifecycle
from simulation.workloads.workload import TokenLengths, Workload, manifest_cost, pipeline_workload
from tests.unit.simulation.profiles import truth


@pytest.fixture(scope="module")
def workload(minilm_pipeline: Path) -> Workload:
    manifest = load(minilm_pipeline, verify=False)
    profile = truth.of_nodes(manifest)
    costs = {node.id: manifest_cost(manifest, node) for node in manifest.nodes}
    model = fitted_model(profile, costs, cpu_scale=0.25)
    return pipeline_workload(
        minilm_pipeline, model, lifecycle(profile), slo_s=0.1, tokens=TokenLengths.fixed(32), request_s=0.001
    )


@pytest.mark.parametrize("cores", [1.0, 4.0])
def test_every_node_gets_a_row_of_the_simulators_tables(workload: Workload, cores: float) -> None:
    tables = ResourceTables(workload, most_tokens=64, most_calls=10)
    for node in (*workload.segments, *workload.experts):
        row = tables.row(node, Configuration(256, cores, 0.0, 1, 8))
        assert (np.diff(tables.seconds[row]) >= 0).all()
        assert tables.rate[row, 1] == 1
        assert (tables.rate[row] > 0).all()


def test_nodes_of_one_kind_share_a_row(workload: Workload) -> None:
    tables = ResourceTables(workload, most_tokens=8, most_calls=4)
    rows = {tables.row(node, Configuration(256, 1.0, 0.0, 1, 4)) for node in workload.experts}
    assert len(rows) == 1
