from __future__ import annotations

import pytest

from platform_words.durations import duration


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 ms"), (0.00004, "0.04 ms"), (0.004056, "4.06 ms"), (0.00996, "10 ms"), (0.0126, "13 ms"),
        (0.7474, "747 ms"), (9.9994, "9999 ms"), (9.9996, "10.0 s"), (61.26, "61.3 s"), (None, "no data"),
    ],
)  # fmt: skip
def test_a_duration_has_as_many_digits_as_one_reads(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_what_is_not_known_is_called_as_its_place_does() -> None:
    assert duration(None, "–") == "–"
