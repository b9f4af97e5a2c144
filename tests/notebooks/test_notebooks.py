"""Notebooks hold what their stored results give, and a fresh run of each shows the same."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from click.testing import CliRunner
from jupyter_client.manager import KernelManager

from notebooks.execute import HERE, differences, kernel, main, run

FIGURES = [f"figure-{number:02d}" for number in range(2, 12)]
MOST_BYTES = 600_000


@pytest.fixture(scope="module")
def manager() -> Iterator[KernelManager]:
    with kernel() as started:
        yield started


def stored(name: str) -> Any:
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def test_a_notebook_that_is_not_there_is_refused_with_those_there_are() -> None:
    refused = CliRunner().invoke(main, ["notebooks/figure-99.ipynb"])
    assert refused.exit_code == 2 and "figure-99 is no notebook of" in refused.output
    assert "figure-06" in refused.output


@pytest.mark.slow
def test_a_notebook_is_named_by_its_path_too() -> None:
    checked = CliRunner().invoke(main, ["notebooks/figure-06.ipynb", "--check"])
    assert (checked.exit_code, checked.output) == (0, "figure-06.ipynb: as stored\n")


def texts(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        str(text)
        for output in outputs
        for text in (output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k != "image/png"))
    )


def picture(shade: float) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, np.full((4, 6, 3), shade), format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def shown(**data: str) -> Any:
    output = nbformat.v4.new_output("display_data", data={key.replace("_", "/"): text for key, text in data.items()})
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])


def test_there_is_one_notebook_for_each_figure_from_2_to_11() -> None:
    assert sorted(path.stem for path in HERE.glob("*.ipynb")) == FIGURES


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_has_a_picture_and_a_comparison_and_nothing_of_the_machine(name: str) -> None:
    notebook = stored(name)
    kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"image/png", "text/markdown"} <= kinds
    assert (HERE / f"{name}.ipynb").stat().st_size < MOST_BYTES
    assert "the paper's figure" in texts(notebook)
    assert not re.search(r"/(home|root|tmp|work|Users)/|stderr|Traceback", texts(notebook))


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_says_which_command_made_what_it_shows(name: str) -> None:
    first = stored(name).cells[0].source
    assert first.startswith(f"# Figure {int(name[-2:])}") and "```console" in first


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_fresh_run_shows_what_is_stored(name: str, manager: KernelManager) -> None:
    assert differences(stored(name), run(HERE / f"{name}.ipynb", manager)) == [], (
        "run `make notebooks` and look at the figure"
    )


def test_a_changed_number_is_a_difference() -> None:
    assert differences(shown(text_markdown="cost 1.2"), shown(text_markdown="cost 1.2")) == []
    assert differences(shown(text_markdown="cost 1.2"), shown(text_markdown="cost 1.3")) == ["the text below cell 0"]


def test_a_changed_picture_is_a_difference_and_a_rounded_pixel_is_not() -> None:
    grey = shown(image_png=picture(0.5))
    assert differences(grey, shown(image_png=picture(0.503))) == []
    assert differences(grey, shown(image_png=picture(0.6))) == ["the picture below cell 0"]


def test_a_missing_picture_is_a_difference() -> None:
    assert differences(shown(image_png=picture(0.5)), shown(text_plain="none")) == ["the text below cell 0"]


def test_readers_of_stored_results_distinguish_numbers_from_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from notebooks import stored as reader

    (tmp_path / "runs.csv").write_text("policy,cost,seed,kept\nhpa,1.5,3,True\nkpa,,0,False\n")
    monkeypatch.setattr(reader, "RESULTS", tmp_path)
    assert reader.table("runs.csv") == [
        {"policy": "hpa", "cost": 1.5, "seed": 3, "kept": True},
        {"policy": "kpa", "cost": None, "seed": 0, "kept": False},
    ]
    assert reader.there("runs.csv") and not reader.there("other.csv")
    claims = [("it is so", "1", True), ("it is more", "2", False), ("(ours) it is fast", "3", False), ("?", "4", None)]
    verdicts = [line.split("|")[3].strip() for line in reader.compared(claims).data.splitlines()[2:]]
    assert verdicts == ["the same", "**not the same**", "**not true**", "not measured"]
    assert reader.listed(["a", "b", "c"]) == "a, b and c" and reader.listed([]) == "none"
