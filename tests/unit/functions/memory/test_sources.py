"""Where weights come from: what a network link or a disk carried, and in which time."""

from __future__ import annotations

from functions.memory.sources import Line


def test_a_link_is_busy_while_any_transfer_is_under_way() -> None:
    link = Line()
    assert link.measured is None
    link.begin(1.0)
    link.begin(2.0)
    link.end(10, 4.0)
    link.end(20, 5.0)
    link.begin(9.0)
    link.end(30, 10.0)
    assert (link.carried, link.busy_s, link.measured) == (60, 5.0, 12.0)
