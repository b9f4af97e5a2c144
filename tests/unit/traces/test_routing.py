"""Routing logs: what is read, what is refused, and the laws fitted to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.traces import popularity
from traces.errors import NoMatchError, TraceError
from traces.routing import Routing, make_routing, synthetic_routing
from traces.routing_logs import read_choices, read_counts

CHOICES = {
    "prompt": [1, 1, 1, 1, 2, 2, 5, 5],
    "layer": [1, 1, 2, 2, 1, 2, 1, 2],
    "pos": [0, 1, 0, 1, 0, 0, 0, 0],
    "e0": [0, 0, 3, 2, 1, 1, 2, 0],
    "e1": [3, 1, 1, 3, 2, 0, 3, 2],
}
COUNTS_HEAD = "model,domain,layer,expert,assignments\n"


def choices(tmp_path: Path, **changed: object) -> Path:
    path = tmp_path / "choices.parquet"
    columns = {name: values for name, values in {**CHOICES, **changed}.items() if values is not None}
    pq.write_table(pa.table(columns), path)
    return path


def counts(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "counts.csv"
    path.write_text(COUNTS_HEAD + text)
    return path


def test_choices_become_assignments_per_window_layer_and_expert(tmp_path: Path) -> None:
    routing = read_choices(choices(tmp_path), windows=2)
    assert routing.assignments.tolist() == [[[2, 2, 1, 1], [1, 2, 1, 2]], [[0, 0, 1, 1], [1, 0, 1, 0]]]
    assert routing.tokens.tolist() == [3, 1] and routing.top_k == 2
    assert routing.window_names == ("prompts 1-2", "prompts 5-5") and routing.layer_names == ("1", "2")
    np.testing.assert_allclose(routing.shares[0, 0], [2 / 6, 2 / 6, 1 / 6, 1 / 6])
    assert routing.requests is not None
    assert routing.requests.window.tolist() == [0, 0, 1] and routing.requests.tokens.tolist() == [2, 1, 1]
    assert routing.requests.touched[1, 0].tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        pytest.param({"e1": [0, 1, 1, 3, 2, 0, 3, 2]}, r"row 0: an expert is chosen twice: \[0, 0\]", id="twice"),
        pytest.param({"e1": [3, None, 1, 3, 2, 0, 3, 2]}, r"row 1: column e1 is empty", id="gap"),
        pytest.param({"e0": [0, 0, -3, 2, 1, 1, 2, 0]}, r"row 2: column e0: -3 is outside 0", id="negative"),
        pytest.param({"e0": [0.0] * 8}, "whole numbers are needed", id="fractions"),
        pytest.param({"e0": [float("nan")] * 8}, "whole numbers are needed", id="nan"),
        pytest.param(
            {"layer": [1, 1, 2, 2, 1, 2, 1, 1]}, "prompt 5 has 2 tokens in layer 1 and 0 in layer 2", id="hole"
        ),
        pytest.param({"pos": None}, "foreign columns", id="column missing"),
        pytest.param({"e7": [0] * 8}, "foreign columns", id="column too many"),
        pytest.param({name: [] for name in CHOICES}, "no rows|whole numbers", id="empty"),
    ],
)
def test_damaged_choices_are_told_with_row_and_rule(tmp_path: Path, changed: dict[str, object], rule: str) -> None:
    path = choices(tmp_path, **changed)
    with pytest.raises(TraceError, match=rule) as error:
        read_choices(path, windows=1)
    assert str(error.value).startswith(f"{path}: ")


@given(st.binary(max_size=400), st.integers(0, 3000), st.integers(0, 4000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_bytes_that_are_no_log_only_ever_raise_trace_errors(tmp_path: Path, junk: bytes, at: int, cut: int) -> None:
    path = choices(tmp_path)
    raw = path.read_bytes()
    path.write_bytes((raw[:at] + junk + raw[at + len(junk) :])[: cut or None])
    for read in (partial(read_choices, path, windows=2), partial(read_counts, path, "olmoe")):
        try:
            routing = read()
        except TraceError:
            continue
        np.testing.assert_allclose(routing.shares.sum(axis=2), 1.0)


def test_counts_of_domains_become_windows(tmp_path: Path) -> None:
    path = counts(
        tmp_path, "m,arxiv,10,1,6\nm,arxiv,2,0,4\nm,arxiv,2,1,2\nother,arxiv,2,0,9\nm,c4,2,1,4\nm,c4,10,0,4\n"
    )
    routing = read_counts(path, "m", top_k=1)
    assert routing.layer_names == ("2", "10") and routing.window_names == ("arxiv", "c4")
    assert routing.assignments.tolist() == [[[4, 2], [0, 6]], [[0, 4], [4, 0]]]
    assert routing.tokens.tolist() == [6, 4] and routing.requests is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("m,a,0,0,-1\n", ":2: column assignments: '-1' is negative", id="negative"),
        pytest.param("m,a,0,0,nan\n", ":2: column assignments: 'nan' is not a whole number", id="nan"),
        pytest.param("m,a,0,,1\n", ":2: column expert is empty", id="gap"),
        pytest.param("m,a,0,0,1\nm,a,0,0,1\n", ":3: expert 0 of m a layer 0 stands twice", id="twice"),
        pytest.param("m,a,0,0,1\nm,a,1,0,2\n", "window a layer 1 has 2 assignments, 1 tokens", id="uneven layers"),
        pytest.param("x,a,0,0,1\n", "no model 'm'; there are: x", id="other model"),
        pytest.param("", "no model 'm'; there are: none", id="empty"),
    ],
)
def test_damaged_counts_are_told_with_line_and_rule(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(TraceError, match=rule):
        read_counts(counts(tmp_path, text), "m", top_k=1)


def test_an_unknown_models_top_k_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="top_k of 'm' is not known"):
        read_counts(counts(tmp_path, "m,a,0,0,1\n"), "m")
    with pytest.raises(NoMatchError, match="no model"):
        read_counts(counts(tmp_path, "m,a,0,0,1\n"), "olmoe")


@given(
    windows=st.integers(1, 4),
    layers=st.integers(1, 3),
    experts=st.integers(2, 12),
    exponent=st.floats(0, 3),
    spread=st.floats(0, 2),
    seed=st.integers(0, 999),
)
def test_made_routing_keeps_every_token(
    windows: int, layers: int, experts: int, exponent: float, spread: float, seed: int
) -> None:
    asked = {"windows": windows, "layers": layers, "experts": experts, "top_k": 2, "tokens_per_window": 77}
    made = synthetic_routing(**asked, exponent=exponent, spread=spread, seed=seed)
    assert (made.assignments.sum(axis=2) == 154).all() and made.assignments.shape == (windows, layers, experts)
    assert made.source.startswith("synthetic") and made.sha256 is None
    again = synthetic_routing(**asked, exponent=exponent, spread=spread, seed=seed)
    assert (again.assignments == made.assignments).all()


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0, 2.0])
def test_the_zipf_fit_finds_the_exponent_that_made_the_counts(exponent: float) -> None:
    made = synthetic_routing(
        windows=2, layers=3, experts=64, top_k=4, exponent=exponent, spread=0.0, tokens_per_window=10**7
    )
    fit = popularity.zipf(made.assignments)
    np.testing.assert_allclose(fit.exponent, exponent, atol=1e-3)
    assert fit.distance.max() < 1e-3


def test_the_zipf_fit_beats_every_other_exponent_in_likelihood() -> None:
    counts_ = np.random.default_rng(3).multinomial(5000, [0.4, 0.05, 0.25, 0.2, 0.1])[None, None]
    ranked = -np.sort(-counts_[0, 0])
    logs = np.log(np.arange(1, 6))

    def likelihood(s: float) -> float:
        return float((ranked * (-s * logs - np.log(np.exp(-s * logs).sum()))).sum())

    grid = np.arange(0, 4, 0.001)
    best = grid[int(np.argmax([likelihood(s) for s in grid]))]
    assert popularity.zipf(counts_).exponent[0, 0] == pytest.approx(best, abs=1e-3)


def test_skew_is_one_for_even_and_the_number_of_experts_for_one_favourite() -> None:
    assert popularity.skew(np.array([[0.25] * 4, [1.0, 0, 0, 0]])).tolist() == [1.0, 4.0]


def test_drift_measures_the_persistence_and_spread_that_were_asked_for() -> None:
    made = synthetic_routing(
        windows=400, layers=4, experts=32, top_k=2, persistence=0.8, spread=0.3, tokens_per_window=10**6
    )
    found = popularity.drift(made)
    assert found.persistence == pytest.approx(0.8, abs=0.03)
    assert found.spread == pytest.approx(0.3, rel=0.05)
    assert 0 < found.distance < 0.3 and found.distance_shuffled is None


def test_what_does_not_move_has_no_drift_and_shuffling_tells_prompts_from_time(tmp_path: Path) -> None:
    still = synthetic_routing(windows=5, layers=2, experts=8, top_k=2, spread=0.0)
    found = popularity.drift(still)
    assert (found.distance, found.busiest_kept, found.persistence) == (0.0, 1.0, 1.0)
    assert found.rank_correlation == pytest.approx(1.0)
    logged = popularity.drift(read_choices(choices(tmp_path), windows=3))
    assert logged.distance_shuffled is not None and 0 <= logged.distance_shuffled <= 1


def test_folding_keeps_every_assignment_of_the_layers_taken(tmp_path: Path) -> None:
    routing = read_choices(choices(tmp_path), windows=2)
    folded = routing.fold(1, 2)
    assert folded.layer_names == ("1",) and folded.assignments.tolist() == [[[4, 2]], [[0, 2]]]
    assert folded.requests is not None and folded.requests.assignments[:, 0].tolist() == [[3, 1], [1, 1], [0, 2]]
    for layers, experts in ((3, 2), (0, 2), (1, 3), (1, 0), (1, 8)):
        with pytest.raises(TraceError, match=r"are wanted|cannot be grouped"):
            routing.fold(layers, experts)


def small(**changed: object) -> Routing:
    arguments: dict[str, object] = {
        "assignments": [[[1, 1]]], "tokens": [2], "top_k": 1, "window_names": ["w"], "layer_names": ["0"],
        "model": "m", "source": "a test",
    }  # fmt: skip
    return make_routing(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"assignments": [[1, 1]]}, "axes"),
        ({"layer_names": ["0", "1"]}, "are named"),
        ({"top_k": 3}, "top_k 3"),
        ({"assignments": [[[3, -1]]]}, "start at 0"),
        ({"tokens": [0]}, "needs a token"),
        ({"tokens": [3]}, "2 assignments, 3 tokens"),
    ],
)
def test_routing_cannot_be_made_of_numbers_that_disagree(changed: dict[str, object], rule: str) -> None:
    assert small().shares.tolist() == [[[0.5, 0.5]]]
    with pytest.raises(TraceError, match=rule):
        small(**changed)
    with pytest.raises(ValueError, match="read-only"):
        small().assignments[0, 0, 0] = 5


@pytest.mark.parametrize(
    "wrong", [{"windows": 0}, {"top_k": 9}, {"exponent": -1.0}, {"persistence": 1.5}, {"experts": 10**9}]
)
def test_senseless_synthetic_routing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(TraceError, match="synthetic routing"):
        synthetic_routing(**{"windows": 2, "layers": 2, "experts": 8, "top_k": 2, **wrong})  # type: ignore[arg-type]
