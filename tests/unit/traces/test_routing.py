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

from tests.parameters import examples
from traces.errors import NoMatchError, TraceError
from traces.routing import Routing, make_routing
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


def test_an_expert_that_is_only_ever_chosen_first_counts(tmp_path: Path) -> None:
    routing = read_choices(choices(tmp_path, e0=[5, 0, 3, 2, 1, 1, 2, 0]), windows=1)
    assert routing.assignments.shape == (1, 2, 6) and routing.assignments[0, 0, 5] == 1


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
def test_damaged_choices_are_reported_with_row_and_rule(tmp_path: Path, changed: dict[str, object], rule: str) -> None:
    path = choices(tmp_path, **changed)
    with pytest.raises(TraceError, match=rule) as error:
        read_choices(path, windows=1)
    assert str(error.value).startswith(f"{path}: ")


@given(st.binary(max_size=400), st.integers(0, 3000), st.integers(0, 4000))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
def test_damaged_counts_are_reported_with_line_and_rule(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(TraceError, match=rule):
        read_counts(counts(tmp_path, text), "m", top_k=1)


def test_an_unknown_models_top_k_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="top_k of 'm' is not known"):
        read_counts(counts(tmp_path, "m,a,0,0,1\n"), "m")
    with pytest.raises(NoMatchError, match="no model"):
        read_counts(counts(tmp_path, "m,a,0,0,1\n"), "olmoe")


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
