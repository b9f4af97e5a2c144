"""Routing of tokens: conservation, popularity, drift, and calls that skew otherwise than tokens."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.engine.errors import SimulationError
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.routing import RoutingStatistics, logged_routing, zipf_routing
from simulation.workloads.workload import TokenLengths
from tests.parameters import examples
from tests.unit.simulation.engine.builders import poisson, workload


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**62), experts=st.lists(st.integers(1, 8), min_size=1, max_size=4), top_k=st.integers(1, 3))
def test_every_token_goes_to_top_k_distinct_experts_of_every_layer(seed: int, experts: list[int], top_k: int) -> None:
    small_workload = workload(experts, top_k=top_k, tokens=TokenLengths.lognormal(20, 1.0, 200))
    requests = draw_requests(small_workload, poisson(10, 50, 1), seed=seed)
    first = 1
    for count in experts:
        layer = requests.counts[first : first + count]
        assert (layer.sum(axis=0) == requests.tokens * min(top_k, count)).all()
        assert (layer <= requests.tokens).all()
        first += count


def test_shares_follow_the_popularity_and_its_drift() -> None:
    weights = np.array([[[0.7, 0.2, 0.1]], [[0.1, 0.2, 0.7]]])
    routing = RoutingStatistics(weights, np.zeros((1, 3), dtype=np.int64), 100.0, "by hand")
    small_workload = workload((3,), top_k=1, routing=routing, tokens=TokenLengths.fixed(50))
    for at, expected in ((0.0, weights[0, 0]), (50.0, [0.4, 0.2, 0.4]), (100.0, weights[1, 0]), (200.0, weights[0, 0])):
        counts = draw_requests(small_workload, np.full(2000, at), seed=3).counts[1:].sum(axis=1)
        assert counts / counts.sum() == pytest.approx(np.asarray(expected), abs=0.01)


def test_wide_factors_give_as_many_tokens_in_fewer_calls() -> None:
    """Observation 1: token share and call share of an expert are not the same."""
    routing = RoutingStatistics(np.array([[[0.19, 0.19, 0.31, 0.31]]]), np.array([[1, 1, 5, 5]]), 100.0, "")
    small_workload = workload((4,), top_k=1, routing=routing, tokens=TokenLengths.fixed(12))
    counts = draw_requests(small_workload, np.zeros(4000), seed=1).counts[1:]
    calls = (counts > 0).mean(axis=1)
    per_call = counts.sum(axis=1) / (counts > 0).sum(axis=1)
    assert calls[:2].min() > calls[2:].max() + 0.05 and per_call[2:].min() > per_call[:2].max()


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    small_workload = workload((4, 3))
    one, again, other = (draw_requests(small_workload, np.arange(50.0), seed=seed) for seed in (5, 5, 6))
    assert one.sha256 == again.sha256 != other.sha256


def test_draws_are_the_same_on_every_machine() -> None:
    """Stored digest: integers from integer arithmetic and tables rounded to nine digits."""
    small_workload = workload((4, 3), tokens=TokenLengths.fixed(30))
    counts = draw_requests(small_workload, np.arange(200) / 8, seed=11).counts
    digest = hashlib.sha256(counts.astype("<u2").tobytes()).hexdigest()
    assert digest == "40936452273170c16ffaecc9217b2a71052d4a192ee4f413a88330e3a91b0f7d"


def test_lengths_follow_their_distribution() -> None:
    small_workload = workload((2,), tokens=TokenLengths.lognormal(40, 0.6, 512))
    tokens = draw_requests(small_workload, np.zeros(20000), seed=0).tokens
    assert tokens.mean() == pytest.approx(40, rel=0.02) and tokens.std() / tokens.mean() == pytest.approx(0.6, rel=0.06)
    assert small_workload.tokens.mean == pytest.approx(40, rel=1e-3)


@pytest.mark.parametrize(
    ("arrivals", "tokens", "message"),
    [
        pytest.param([1.0, 0.5], None, "never fall", id="time runs backwards"),
        pytest.param([-1.0], None, "starts at 0", id="before the start"),
        pytest.param([0.0], [0], "1 to 65535 tokens", id="empty request"),
        pytest.param([0.0], [70000], "1 to 65535 tokens", id="too long"),
        pytest.param([0.0], [1, 2], "as many lengths", id="lengths do not fit"),
    ],
)
def test_bad_requests_are_refused(arrivals: list[float], tokens: list[int] | None, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        draw_requests(workload((2,)), arrivals, seed=0, tokens=tokens)


def test_routing_that_does_not_fit_its_arrivals_is_refused() -> None:
    with pytest.raises(SimulationError, match="do not fit"):
        Requests(np.zeros(3), np.ones((2, 2), dtype=np.uint16), "")


def test_zipf_puts_its_law_on_every_layer_and_swaps_ranks_from_phase_to_phase() -> None:
    routing = zipf_routing([8, 4], exponent=1.0, phases=5, swaps=1, seed=2)
    law = np.sort(1 / np.arange(1, 9)) / (1 / np.arange(1, 9)).sum()
    for phase in range(5):
        assert np.sort(routing.popularity[phase, 0]) == pytest.approx(law, abs=1e-9)
        assert routing.popularity[phase, 1, 4:].tolist() == [0.0] * 4
    moved = (routing.popularity[1:, 0] != routing.popularity[:-1, 0]).sum(axis=1)
    assert moved.tolist() == [2] * 4


def test_statistics_of_a_log_keep_its_popularity_and_its_prompts_spread() -> None:
    generator = np.random.default_rng(0)
    narrow = generator.multinomial(200, [0.5, 0.2, 0.2, 0.1], size=300)
    wide = np.where(generator.random(300)[:, None] < 0.5, [[200, 0, 0, 0]], [[0, 100, 60, 40]])
    assignments = np.stack([narrow, wide], axis=1).astype(np.int32)
    shares = assignments.sum(axis=0, keepdims=True) / assignments.sum(axis=(0, 2), keepdims=False)[None, :, None]
    prompts = SimpleNamespace(assignments=assignments, tokens=np.full(300, 100))
    log = SimpleNamespace(shares=shares, source="made", requests=prompts)
    routing = logged_routing(log, [4, 4])
    assert routing.popularity[0, 0] == pytest.approx([0.5, 0.2, 0.2, 0.1], abs=0.01)
    assert routing.spread[0].max() <= 1 and routing.spread[1].min() >= 3
    assert logged_routing(log, [2, 2]).experts == 2
    with pytest.raises(ValueError, match="4 experts are logged"):
        logged_routing(log, [5])


@pytest.mark.parametrize(
    ("weights", "spread", "phase_s"),
    [
        pytest.param(np.full((1, 1, 2), 0.4), np.zeros((1, 2), dtype=int), 1.0, id="shares do not sum to 1"),
        pytest.param(np.full((1, 1, 2), 0.5), np.full((1, 2), 9), 1.0, id="no such spread"),
        pytest.param(np.full((1, 1, 2), 0.5), np.zeros((2, 2), dtype=int), 1.0, id="other layers"),
        pytest.param(np.full((1, 1, 2), 0.5), np.zeros((1, 2), dtype=int), 0.0, id="no time"),
    ],
)
def test_bad_statistics_are_refused(weights: np.ndarray, spread: np.ndarray, phase_s: float) -> None:
    with pytest.raises(ValueError, match=r"popularity|spread"):
        RoutingStatistics(weights, spread, phase_s, "")
