"""Ridges and valleys are told from slopes and from noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.fit.surface import Surface, features, sentence, surface_of
from tests.unit.simulation.profiles.truth import BLANK

CALLS = (1, 2, 4, 8)


def surface(*lines: list[list[float]]) -> Surface:
    """Lines [concurrency][repeat] of P95, one for each memory size."""
    memory = tuple(128 * (place + 1) for place in range(len(lines)))
    return Surface("expert-0-0", memory, (1.0,) * len(lines), CALLS, 50.0, 32, np.array(lines))


def test_a_dip_that_every_repeat_shows_is_a_valley() -> None:
    numbers = features(surface([[9.0, 9.5], [6.0, 6.2], [7.0, 7.1], [12.0, 11.0]]))
    assert [(one.kind, one.concurrency, one.left, one.right) for one in numbers] == [("valley", 2, 1, 8)]
    assert numbers[0].depth == pytest.approx(np.sqrt(9.0 / 6.0 * 9.5 / 6.2) - 1)


def test_a_hump_is_a_ridge() -> None:
    numbers = features(surface([[5.0, 5.0], [8.0, 8.1], [6.0, 6.1], [5.0, 5.2]]))
    assert [(one.kind, one.concurrency) for one in numbers] == [("ridge", 2)]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param([[9.0, 9.0], [7.0, 7.0], [5.0, 5.0], [4.0, 4.0]], id="falling"),
        pytest.param([[4.0, 4.0], [5.0, 5.0], [7.0, 7.0], [9.0, 9.0]], id="rising"),
        pytest.param([[9.0, 5.0], [6.0, 6.2], [7.0, 7.1], [12.0, 11.0]], id="repeats disagree"),
        pytest.param([[9.0, 6.0], [5.0, 7.9], [7.0, 9.1], [8.0, 11.0]], id="within the scatter"),
        pytest.param([[6.1, 6.1], [6.0, 6.0], [6.1, 6.1], [6.2, 6.2]], id="within the margin"),
    ],
)
def test_slopes_and_noise_are_no_features(line: list[list[float]]) -> None:
    assert features(surface(line)) == []


@given(st.lists(st.floats(0.001, 10), min_size=4, max_size=4))
def test_one_repeat_decides_nothing(line: list[float]) -> None:
    one = surface([[value] for value in line])
    assert features(one) == []
    assert "one undisturbed repeat only" in sentence(one)


def test_the_sentence_says_that_there_are_none() -> None:
    flat = surface([[5.0, 5.0]] * 4)
    assert "no ridge or valley stands out" in sentence(flat)


def test_the_sentence_names_what_there_is() -> None:
    assert "a valley at 128 MiB and 2 at once" in sentence(surface([[9.0, 9.5], [6.0, 6.2], [7.0, 7.1], [12.0, 11.0]]))


def test_rows_become_a_surface_with_gaps_where_points_failed() -> None:
    def at(memory: int, calls: int, repeat: int, p95_s: float | None) -> Row:
        return replace(BLANK, family="surface", memory_mib=memory, concurrency=calls, repeat=repeat, p95_s=p95_s)

    drawn_surface = surface_of([at(128, 1, 0, 1.0), at(128, 2, 0, 2.0), at(256, 1, 1, 3.0), at(256, 2, 0, None)])
    assert drawn_surface is not None
    assert (drawn_surface.memory_mib, drawn_surface.concurrency) == ((128, 256), (1, 2))
    assert drawn_surface.p95_s[1, 0, 1] == 3.0
    assert np.isnan(drawn_surface.p95_s[1, 1]).all()


def test_noise_of_three_repeats_hardly_ever_looks_like_a_feature() -> None:
    random = np.random.default_rng(1)
    lines = [np.exp(random.normal(0, 0.3, size=(4, 3))).tolist() for _ in range(200)]
    assert len(features(surface(*lines))) <= 20


def test_repeats_beside_other_work_do_not_count_where_a_quieter_one_is_there() -> None:
    idle = replace(BLANK, family="surface", p95_s=1.0, others_cores=0.1)
    drawn_surface = surface_of([idle, replace(idle, repeat=1, p95_s=9.0, others_cores=1.5)])
    assert drawn_surface is not None
    assert drawn_surface.median_s[0, 0] == 1.0


def test_rows_without_a_surface_have_none() -> None:
    assert surface_of([BLANK]) is None


@pytest.mark.parametrize(("seconds", "deviation"), [((2.0,), 0.0), ((1.0, 3.0), 2**0.5), ((1.0, 2.0, 3.0), 1.0)])
def test_the_deviation_of_a_point_is_the_samples(seconds: tuple[float, ...], deviation: float) -> None:
    assert spread(seconds).sd_s == pytest.approx(deviation)
