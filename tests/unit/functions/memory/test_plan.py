from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.memory.move_plan import MovePlan, NodeMemory, plan_move
from functions.memory.regions import RegionError

SIZES = {"p/a": 100, "p/b": 50, "p/c": 10, "p/d": 1}
NODES = "xyz"
regions = st.frozensets(st.sampled_from(sorted(SIZES)))
clusters = st.fixed_dictionaries(
    {node: st.builds(NodeMemory, regions, st.sampled_from([10.0, 25.0]), st.sampled_from([1.0, 5.0])) for node in NODES}
)
targets = st.dictionaries(st.sampled_from(NODES), regions)


def node(*held: str, link: float = 10.0, disk: float = 1.0, limit: int = 0) -> NodeMemory:
    return NodeMemory(frozenset(f"p/{name}" for name in held), link, disk, limit)


def wanted(*names: str) -> frozenset[str]:
    return frozenset(f"p/{name}" for name in names)


def reported(plan: MovePlan) -> list[tuple[str, str, str, str]]:
    return [(step.node, step.region[2:], step.source, step.peer) for step in plan.steps]


def test_what_is_there_is_reused_what_a_peer_has_is_copied_and_only_the_rest_is_read() -> None:
    plan = plan_move({"x": node("a", "b"), "y": node()}, {"x": wanted("a"), "y": wanted("b", "c")}, SIZES)
    assert reported(plan) == [("x", "a", "reuse", ""), ("y", "b", "peer", "x"), ("y", "c", "disk", "")]
    assert plan.release == {"x": ("p/b",)}
    assert [step.end_s for step in plan.steps] == [0.0, 5.0, 15.0]
    assert (plan.predicted_s, plan.nbytes("peer"), plan.nbytes("disk"), plan.nbytes("reuse")) == (15.0, 50, 10, 0)


def test_a_region_that_nobody_holds_is_read_by_the_fastest_disk_and_copied_from_there() -> None:
    plan = plan_move({"x": node(), "y": node(disk=5.0)}, {"x": wanted("a"), "y": wanted("a")}, SIZES)
    assert reported(plan) == [("y", "a", "disk", ""), ("x", "a", "peer", "y")]
    assert plan.steps[1].begin_s == plan.steps[0].end_s == 20.0


def test_without_peers_everything_is_read() -> None:
    plan = plan_move({"x": node("a"), "y": node()}, {"x": wanted("a"), "y": wanted("a")}, SIZES, peers=False)
    assert reported(plan) == [("x", "a", "reuse", ""), ("y", "a", "disk", "")]


def test_what_was_broken_off_is_gone_on_with() -> None:
    there = NodeMemory(frozenset(), 10.0, 1.0, unfinished={"p/a": 60})
    plan = plan_move({"x": node("a"), "y": there}, {"x": wanted("a"), "y": wanted("a")}, SIZES)
    assert (plan.nbytes("peer"), plan.predicted_s) == (40, 4.0)


def test_two_holders_share_the_copying() -> None:
    plan = plan_move({"x": node("a", "b"), "y": node("a", "b"), "z": node(), "v": node()},
                     {"z": wanted("a"), "v": wanted("a")}, SIZES)  # fmt: skip
    assert {step.peer for step in plan.steps} == {"x", "y"}
    assert plan.predicted_s == 10.0


@pytest.mark.parametrize(
    ("nodes", "target", "sentence"),
    [
        pytest.param({"x": node()}, {"q": wanted("a")}, "node 'q'", id="unknown-node"),
        pytest.param({"x": node()}, {"x": wanted("q")}, "p/q", id="unknown-region"),
        pytest.param({"x": node("a", limit=120)}, {"x": wanted("b")}, "150 bytes while moving", id="no-room"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    nodes: dict[str, NodeMemory], target: dict[str, frozenset[str]], sentence: str
) -> None:
    with pytest.raises(RegionError, match=sentence):
        plan_move(nodes, target, SIZES)


@settings(deadline=None)
@given(clusters, targets)
def test_every_plan_ends_with_what_is_wanted_by_possible_steps(
    nodes: dict[str, NodeMemory], target: dict[str, frozenset[str]]
) -> None:
    plan = plan_move(nodes, target, SIZES)
    there = {(name, region): 0.0 for name, memory in nodes.items() for region in memory.held}
    busy: dict[str, list[tuple[float, float]]] = {}
    for step in plan.steps:
        if step.source == "reuse":
            assert (step.node, step.region) in there
            continue
        assert step.nbytes == SIZES[step.region]
        if step.source == "peer":
            assert there[step.peer, step.region] <= step.begin_s
            busy.setdefault(f"out {step.peer}", []).append((step.begin_s, step.end_s))
        busy.setdefault(f"in {step.node}", []).append((step.begin_s, step.end_s))
        there[step.node, step.region] = step.end_s
    for times in busy.values():  # a line carries one region at a time
        assert all(first[1] <= second[0] for first, second in zip(sorted(times), sorted(times)[1:], strict=False))
    for name, memory in nodes.items():
        left = {region for holder, region in there if holder == name} - set(plan.release.get(name, ()))
        assert left == target.get(name, frozenset())
        assert not set(plan.release.get(name, ())) - memory.held
    # Read from disk: exactly what is wanted and held nowhere, once.
    held = frozenset().union(*(memory.held for memory in nodes.values()))
    read = [step.region for step in plan.steps if step.source == "disk"]
    assert sorted(read) == sorted(frozenset().union(frozenset(), *target.values()) - held)


@settings(deadline=None)
@given(clusters, targets)
def test_the_prediction_is_between_the_busiest_line_and_all_moves_one_after_another(
    nodes: dict[str, NodeMemory], target: dict[str, frozenset[str]]
) -> None:
    plan = plan_move(nodes, target, SIZES)
    spent = [step.end_s - step.begin_s for step in plan.steps]
    by_node = [sum(step.end_s - step.begin_s for step in plan.steps if step.node == name) for name in nodes]
    assert max(by_node) <= plan.predicted_s + 1e-9
    assert plan.predicted_s <= sum(spent) + 1e-9
