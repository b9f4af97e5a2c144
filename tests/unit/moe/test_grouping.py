"""Nodes share functions only when there is no room, and never more than they must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.grouping import GroupingError, group
from moe.manifest import Manifest, Node, Router, WeightsRef
from moe.names import expected_edges, expert_id, segment_id


def make(layers: int, experts: int) -> Manifest:
    def node(node_id: str, layer: int, expert: int | None) -> Node:
        kind = "segment" if expert is None else "expert"
        return Node(node_id, kind, layer, expert, WeightsRef("w"), 4, 1, 2, 4, 4, ("x",), ("y",))  # type: ignore[arg-type]

    nodes = [node(segment_id(i), i, None) for i in range(layers + 1)]
    nodes += [node(expert_id(i, j), i, j) for i in range(layers) for j in range(experts)]
    edges = expected_edges(layers + 1, [experts] * layers)
    return Manifest("m", "bert", "embedding", "float32", {}, Router(1), None, tuple(nodes), tuple(edges), {})


def test_each_node_has_its_own_function_when_there_is_room() -> None:
    grouping = group(make(2, 3))
    assert [function.name for function in grouping.functions[:3]] == ["m", "m-segment-0", "m-segment-1"]
    assert len(grouping.functions) == 1 + 3 + 6
    assert grouping.function_of("expert-1-2").path("expert-1-2") == "/"


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(2, 120))
def test_every_node_is_hosted_once_within_the_limit(layers: int, experts: int, limit: int) -> None:
    manifest = make(layers, experts)
    grouping = group(manifest, limit)
    hosted = [node for function in grouping.functions for node in function.nodes]
    assert sorted(hosted) == sorted(["ingress", *(node.id for node in manifest.nodes)])
    assert len(grouping.functions) == min(limit, 1 + len(manifest.nodes))
    assert len({function.name for function in grouping.functions}) == len(grouping.functions)
    assert grouping.functions[0].is_ingress


@pytest.mark.parametrize(("layers", "experts", "limit"), [(6, 4, 15), (12, 8, 15), (12, 4, 10)])
def test_experts_of_one_layer_stay_apart_where_they_can(layers: int, experts: int, limit: int) -> None:
    grouping = group(make(layers, experts), limit)
    for layer in range(layers):
        names = {grouping.function_of(expert_id(layer, j)).name for j in range(experts)}
        assert len(names) == experts


def test_shared_functions_answer_under_stages() -> None:
    function = group(make(6, 4), 15).function_of("segment-0")
    assert len(function.nodes) > 1
    assert function.path("segment-0") == "/stage/segment-0"
    with pytest.raises(KeyError):
        function.path("expert-0-0")


@pytest.mark.parametrize("limit", [1, -1])
def test_impossible_limits_are_refused(limit: int) -> None:
    with pytest.raises(GroupingError, match="at least 2"):
        group(make(1, 1), limit)
