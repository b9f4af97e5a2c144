"""The bound multiplies calls by the very factors that the simulation draws for them."""

from __future__ import annotations

import numpy as np
import pytest

from rl.bound.certain import _factors
from rl.bound.loads import WindowLoad
from rl.bound.physics import Physics
from rl.sim.requests import draw_requests
from rl.sim.tables import call_factors
from rl.workload_paper import paper_workload


@pytest.mark.parametrize(("seed", "node"), [(0, 0), (3, 20), (11, 60)])
def test_factors_of_calls_are_the_simulations(seed: int, node: int) -> None:
    workload = paper_workload("bert-4")
    requests = draw_requests(workload, np.linspace(0, 9, 40), seed=1)
    physics = Physics(workload, requests.most_tokens)
    rows = physics.experts[0][0]
    found = _factors(rows, WindowLoad(physics, requests, 5, 30, 10.0), seed, node)
    assert np.array_equal(found, call_factors(rows.noise, seed, node, 5, 30))
    assert len(np.unique(found)) > 5
