"""An expert that every token meets, in simulated traffic."""

from __future__ import annotations

import numpy as np

from simulation.engine.requests import draw_requests
from tests.unit.simulation.engine.builders import poisson, workload


def test_it_gets_every_token_and_the_others_what_they_get_without_it() -> None:
    made = workload((4, 3), top_k=2, shared=1)
    requests = draw_requests(made, poisson(20, 200), seed=3)
    tokens = requests.tokens.astype(np.int64)
    rows = requests.counts[1:].astype(np.int64)
    for experts in (rows[:4], rows[4:]):
        assert (experts[-1] == tokens).all() and (experts[:-1].sum(0) == 2 * tokens).all()
        assert (experts[:-1] <= tokens).all()
    last = made.topology.experts(0)[-1]
    assert made.typical_tokens(last) == made.tokens.mean
    assert made.typical_tokens(made.topology.experts(0)[0]) == made.tokens.mean * 2 / 3
