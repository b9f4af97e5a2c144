"""Retired words stay away, public arrays state their axes; ``python -m tests.docs.words`` lists what is left."""

from __future__ import annotations

import pytest

from tests.docs.words import PAGES, ROOMS, findings, of_page, of_source


@pytest.mark.slow
@pytest.mark.parametrize("room", (*ROOMS, *PAGES))
def test_no_retired_word_and_no_array_without_axes(room: str) -> None:
    assert [f"{finding.path}:{finding.line}: {finding.what}" for finding in findings((room,))] == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        pytest.param("played = 1\n", "name played", id="name"),
        pytest.param("class OwnPipelines: ...\n", "name OwnPipelines", id="part of a class's name"),
        pytest.param("def f():\n    found = 1\n", "name found", id="variable that names nothing"),
        pytest.param('"""A volley of requests."""\n', "word volley", id="docstring"),
        pytest.param("x = 1  # as told\n", "word told", id="comment"),
        pytest.param('def f():\n    """Of the window."""\n', "docstring begins with Of", id="Of"),
        pytest.param('def f(x: Tensor):\n    """Doubles."""\n', "array without axes: f", id="axes"),
    ],
)
def test_the_finder_finds(source: str, what: str) -> None:
    assert [finding.what for finding in of_source("a.py", source)] == [what]


@pytest.mark.parametrize("source", ["display = replay = 1\n", 'def f(x: Tensor):\n    """``x`` [tokens] float32."""\n'])
def test_the_finder_lets_good_names_pass(source: str) -> None:
    assert list(of_source("a.py", source)) == []


def test_the_finder_reads_pages_with_line_numbers() -> None:
    assert [(finding.line, finding.what) for finding in of_page("a.md", "fine\nit is said\n")] == [(2, "word said")]


def test_a_stored_name_may_stand_between_quotes_and_nowhere_else() -> None:
    assert list(of_source("a.py", 'row["wish"] = 1\n')) == [] and list(of_page("a.md", "the label `wish`\n")) == []
    assert [finding.what for finding in of_page("a.md", "`a` is a wish\n")] == ["word wish"]
