"""The roofline against its own arithmetic, noise tables, and the workloads built on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Configuration
from simulation.arrays import Floats
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.engine.tables import ResourceTables, atoms_of, call_factors
from simulation.latency.contract import Noise
from simulation.latency.devices import RTX_3090, TEN_GIGABIT, XEON_6230R
from simulation.latency.roofline import Roofline
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import TokenLengths, pipeline_workload
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.simulation.engine.builders import (
    COST,
    LIFECYCLE,
    Arithmetic,
    configuration,
    one_expert,
    poisson,
    simulate,
    workload,
)

MODEL = Roofline()


def test_a_call_alone_is_network_plus_the_higher_roof() -> None:
    node, tokens = replace(COST, flops_per_token=1e7), 50
    moved_s = 50 * 8192 / TEN_GIGABIT.bytes_per_s
    compute_s = 5e8 / (XEON_6230R.core_flops_per_s * XEON_6230R.compute_efficiency)
    read_s = (node.touched_bytes + 50 * 8192) / (XEON_6230R.core_bytes_per_s * XEON_6230R.memory_efficiency)
    assert compute_s > read_s
    assert MODEL.seconds(node, tokens, 1, 0) == pytest.approx(TEN_GIGABIT.call_s + moved_s + compute_s)
    small = replace(node, flops_per_token=1e3)
    assert MODEL.seconds(small, tokens, 1, 0) == pytest.approx(TEN_GIGABIT.call_s + moved_s + read_s)
    host_s = RTX_3090.launch_s + 50 * 8192 / RTX_3090.link_bytes_per_s
    gpu_s = max(5e8 / (0.5 * 35.6e12 * 0.5), (node.touched_bytes + 50 * 8192) / (0.5 * 936e9 * 0.8))
    assert MODEL.seconds(node, tokens, 0, 0.5) == pytest.approx(TEN_GIGABIT.call_s + moved_s + host_s + gpu_s)


@given(tokens=st.integers(0, 2000), cores=st.floats(0.1, 64), calls=st.integers(1, 64))
def test_more_never_hurts_a_call_alone_and_sharing_stays_within_bounds(tokens: int, cores: float, calls: int) -> None:
    node = replace(COST, flops_per_token=9e6)
    assert MODEL.seconds(node, tokens + 1, cores, 0) >= MODEL.seconds(node, tokens, cores, 0) > 0
    assert MODEL.seconds(node, tokens, cores * 1.5, 0) <= MODEL.seconds(node, tokens, cores, 0)
    speedup = float(MODEL.speedup(node, tokens, cores, 0, calls))
    assert 0 < speedup <= calls and float(MODEL.speedup(node, tokens, cores, 0, 1)) == pytest.approx(1.0)
    assert 0 < float(MODEL.utilisation(node, tokens, cores, 0)) <= 1
    assert not MODEL.measured(node, tokens, cores, 0)


def test_arguments_broadcast() -> None:
    seconds = MODEL.seconds(COST, np.arange(5)[:, None], np.array([1.0, 0.0]), np.array([0.0, 0.3]))
    assert seconds.shape == (5, 2) and seconds[3, 1] == MODEL.seconds(COST, 3, 0.0, 0.3)


@pytest.mark.parametrize("cv", [0.0, 0.1, 0.5, 1.0])
def test_noise_has_mean_one_and_its_spread_in_every_form(cv: float) -> None:
    noise = Noise.lognormal(cv)
    assert noise.cv == pytest.approx(cv, rel=0.08)
    atoms = atoms_of(noise)
    assert atoms.mean() == pytest.approx(1.0, abs=1e-8) and atoms.std() == pytest.approx(cv, rel=0.1)
    assert (np.diff(atoms) >= 0).all()


@pytest.mark.parametrize("factors", [[1.0], [1.0, 0.5, 1.5], [0.0, 2.0], [0.5, 0.6], [0.5, np.nan]])
def test_noise_that_is_no_distribution_with_mean_one_is_refused(factors: list[float]) -> None:
    with pytest.raises(ValueError, match="noise factors"):
        Noise(np.array(factors))


@pytest.mark.parametrize("name", PAPER_WORKLOADS)
def test_the_paper_s_workloads_have_its_shape_and_its_slo(name: str) -> None:
    paper = paper_workload(name)
    kind, experts = name.split("-")
    layers, slo_s = {"bert": (12, 0.08), "gpt2": (12, 0.1), "b2b": (24, 0.12)}[kind]
    assert paper.topology.layers == layers and len(paper.experts) == layers * int(experts)
    assert paper.slo_s == slo_s and len(paper.segments) == layers + 1 and not paper.measured
    assert len(paper.topology.edges) == 2 * len(paper.experts)
    assert paper.costs["expert-0-0"].weights_bytes == pytest.approx(4 * (2 * 768 * 3072 + 768 + 3072))


@pytest.mark.parametrize("name", PAPER_WORKLOADS)
def test_the_slo_can_be_met_and_the_cheapest_configuration_misses_it(name: str) -> None:
    """Else a comparison of costs would measure nothing: a request alone, its busiest expert twice the mean."""
    paper = paper_workload(name)

    def pass_s(configuration: Configuration) -> float:
        def call_s(node: str, tokens: float, at: Configuration) -> float:
            return float(paper.latency.seconds(paper.costs[node], tokens, at.cpu_cores, at.gpu_share))

        segments = sum(call_s(node.id, paper.tokens.mean, paper.segment_configuration) for node in paper.segments)
        experts = [paper.topology.experts(layer)[0] for layer in range(paper.topology.layers)]
        return segments + sum(call_s(node.id, 2 * paper.typical_tokens(node), configuration) for node in experts)

    cheapest = min(
        (Configuration(128, cores, share, 1, 1) for cores, share in paper.space.resources), key=paper.prices.unit_per_s
    )
    fastest = min((Configuration(128, cores, share, 1, 1) for cores, share in paper.space.resources), key=pass_s)
    assert pass_s(fastest) < paper.slo_s < pass_s(cheapest)


def test_a_pipeline_s_folder_becomes_a_workload(tmp_path: Path) -> None:
    folder = write_pipeline(tmp_path / "tiny")
    served = pipeline_workload(folder, MODEL, LIFECYCLE, slo_s=0.2, tokens=TokenLengths.fixed(16))
    assert served.measured and served.routing.layers == served.topology.layers
    assert set(served.costs) == {node.id for node in served.topology.nodes} - {"ingress"}
    requests = draw_requests(served, poisson(5, 40), seed=0)
    latency, _ = simulate(Simulation(served, requests, served.initial(configuration())), [100.0])
    assert not np.isnan(latency).any()


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(ValueError, match="no workload 'bert-5'; there are: bert-4"):
        paper_workload("bert-5")


def test_coupled_memory_bounds_the_cores() -> None:
    small_workload = workload(memory_mb_per_core=1024.0)
    assert small_workload.cores(configuration(cpu_cores=4.0, memory_mb=2048)) == 2.0
    assert small_workload.cores(configuration(cpu_cores=1.0, memory_mb=2048)) == 1.0
    assert small_workload.cores(configuration(cpu_cores=0.0, gpu_share=0.5)) == 0.0


@pytest.mark.parametrize(
    ("quantiles", "ok"), [([1.0, 5.0], True), ([0.5, 5.0], False), ([5.0, 1.0], False), ([5.0], False)]
)
def test_token_lengths_are_quantiles_from_one(quantiles: list[float], ok: bool) -> None:
    if ok:
        assert TokenLengths(np.array(quantiles), "").mean == 3.0
    else:
        with pytest.raises(ValueError, match="token lengths"):
            TokenLengths(np.array(quantiles), "")


def test_the_factors_of_calls_are_those_that_the_simulation_draws() -> None:
    found, requests = one_expert([0.0, 50.0, 100.0], [7, 9, 4], Arithmetic(scatter=Noise.lognormal(0.5)))
    simulation = Simulation(found, requests, found.initial(configuration()), seed=13)
    latency, _ = simulate(simulation, [400.0])
    atoms = atoms_of(Noise.lognormal(0.5))[None]
    factors = sum(call_factors(atoms, 13, node, 0, 3)[0] for node in range(3))
    # segments have one core each, as the expert has
    assert latency == pytest.approx(factors * (0.001 + requests.tokens * 0.001 / 1.0), abs=1e-12)


def test_tables_share_rows_among_equal_nodes_and_refuse_impossible_models() -> None:
    found, _ = one_expert([0.0], [1])
    tables = ResourceTables(found, 10, 4)
    segment, expert = found.segments[0], found.experts[0]
    assert tables.row(segment, configuration()) == tables.row(found.segments[1], configuration())
    assert tables.row(expert, configuration(memory_mb=512)) == tables.row(expert, configuration(3))
    assert tables.row(expert, configuration(cpu_cores=2.0)) != tables.row(expert, configuration())

    class Faster(Arithmetic):
        def speedup(self, *arguments: Any, **more: Any) -> Floats:
            return np.arange(1.0, 5.0) * 2

    with pytest.raises(ValueError, match="at most m"):
        ResourceTables(replace(found, latency=Faster()), 10, 4).row(expert, configuration())
