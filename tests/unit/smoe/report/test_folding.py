"""Identical changes of one time are one row, in the report's table and in its figure."""

from __future__ import annotations

import pytest

from autoscaler.changes import describe_change
from autoscaler.contract import Configuration
from functions.dispatch.activation import Burst
from smoe.report.folding import folded
from smoe.report.model import Action, ActionKind, Run


def action(node: str, time_s: float = 1.0, change: str = "replicas 8 → 9", reason: str = "busy") -> Action:
    kind: ActionKind = "up" if change.startswith("replicas") else "limits"
    return Action(time_s, f"m-{node}", kind, change, reason, True, node=node)


EXPERTS = [action(f"expert-0-{number}") for number in range(24)]


def test_identical_changes_of_one_time_are_one_row() -> None:
    later, other, segment = action("expert-0-0", 2.0), action("expert-1-0", 1.0, "replicas 8 → 10"), action("segment-0")
    rows = folded([*EXPERTS, segment, other, later])
    assert [(row.who, row.change) for row in rows] == [
        ("24 experts", "replicas 8 → 9"),
        ("m-segment-0", "replicas 8 → 9"),
        ("m-expert-1-0", "replicas 8 → 10"),
        ("m-expert-0-0", "replicas 8 → 9"),
    ]
    assert rows[0].functions == tuple(one.function for one in EXPERTS) and rows[0].why == "busy"


def test_of_several_reasons_the_first_is_given_with_its_function() -> None:
    (row,) = folded([action("expert-0-0", reason="busy 0.9"), action("expert-0-1", reason="busy 0.8")])
    assert row.why == "m-expert-0-0: busy 0.9"


def test_the_stated_cost_of_a_token_keeps_no_changes_apart() -> None:
    before, *after = (
        Configuration(128, 1.0, 0.0, replicas, 8, Burst(1, token_s=token_s))
        for replicas, token_s in ((2, 1e-3), (3, 2e-3), (3, 3e-3))
    )
    changes = [describe_change(before, one) for one in after]
    (row,) = folded([action(f"expert-0-{number}", change=change) for number, change in enumerate(changes)])
    assert changes[0] != changes[1] and row.change == "replicas 2 → 3"
    assert folded([action("expert-0-0", change=changes[0])])[0].change == changes[0]
    alone = [action("expert-0-0", change=change.partition(", ")[2]) for change in changes]
    assert [row.change for row in folded(alone)] == ["a token's cost"]


@pytest.mark.parametrize(
    ("nodes", "who"),
    [(("segment-0", "segment-1"), "2 segments"), (("expert-0-0_expert-0-1", "expert-1-0_expert-1-1"), "2 functions")],
)
def test_functions_are_counted_by_what_they_serve(nodes: tuple[str, str], who: str) -> None:
    assert [row.who for row in folded(list(map(action, nodes)))] == [who]


def test_many_functions_with_one_change_share_a_row_of_the_figure_and_few_do_not() -> None:
    from smoe.report import figures

    few = [action(f"expert-1-{number}", change="memory 256 → 128 MB") for number in range(3)]
    marks = figures._marks(Run((), (), (*EXPERTS, *few), ()))
    assert marks[1.0, "many experts", "up", True] == 24
    assert {row for _, row, *_ in marks} == {"many experts", *(one.function for one in few)}
