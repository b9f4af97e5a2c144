"""The bound multiplies calls by the very factors that the simulation draws for them."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.bound.certain import factors_of
from evaluation.bound.loads import WindowLoad
from evaluation.bound.physics import Physics
from simulation.engine.requests import draw_requests
from simulation.engine.tables import call_factors
from simulation.workloads.paper import paper_workload


@pytest.mark.parametrize(("seed", "node"), [(0, 0), (3, 20), (11, 60)])
def test_factors_of_calls_are_the_simulations(seed: int, node: int) -> None:
    workload = paper_workload("bert-4")
    requests = draw_requests(workload, np.linspace(0, 9, 40), seed=1)
    physics = Physics(workload, requests.most_tokens)
    rows = physics.experts[0][0]
    factors = factors_of(rows, WindowLoad(physics, requests, 5, 30, 10.0), seed, node)
    assert np.array_equal(factors, call_factors(rows.noise, seed, node, 5, 30))
    assert len(np.unique(factors)) > 5
