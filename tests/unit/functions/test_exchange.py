"""Grouping by expert, and the sum of what comes back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from functions.ingress.exchange import exchange


@given(st.data(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_token_alone_is_grouped_and_summed_to_the_bit_as_in_a_batch(
    data: st.DataObject, choices: int, seed: int
) -> None:
    ids = np.array([data.draw(st.lists(st.integers(0, 5), min_size=choices, max_size=choices))])
    drawn = np.random.default_rng(seed)
    gates = drawn.random((1, choices), np.float32)
    x, residual = (drawn.standard_normal((1, 7), np.float32) for _ in range(2))
    matrices = drawn.standard_normal((6, 7), np.float32)
    sums = []
    for copies in (1, 2):
        groups = exchange(np.repeat(ids, copies, 0), np.repeat(gates, copies, 0))
        assert groups.experts == tuple(sorted(set(ids[0].tolist())))
        parts = groups.scatter(np.repeat(x, copies, 0))
        outputs = [part * matrices[expert] for part, expert in zip(parts, groups.experts, strict=True)]
        sums.append(groups.combine(np.repeat(residual, copies, 0), outputs)[0])
    assert sums[0].tobytes() == sums[1].tobytes()
