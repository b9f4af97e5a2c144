"""The axes of an evaluation's figures."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [((0.85, 1.1), "linear", {"0.9", "1"}), ((0.3, 30.0), "log", {"0.5", "1", "2", "5", "10", "20"})],
)
def test_tails_have_plain_numbers_and_a_logarithm_from_a_decade_on(
    values: tuple[float, ...], scale: str, ticks: set[str]
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from evaluation.comparison import figures

    figure = Figure()
    axes = figure.subplots()
    axes.plot(values)
    axes.axhline(1.0)
    figures._scale(axes)
    FigureCanvasAgg(figure).draw()
    low, high = axes.get_ylim()
    labels = {tick.get_text() for tick in axes.get_yticklabels() if low <= float(tick.get_position()[1]) <= high}
    assert axes.get_yscale() == scale and ticks <= labels
    assert not any(tick.get_text() for tick in axes.get_yticklabels(minor=True))
