"""Which node serves each activated expert of a layer, against all possible choices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.ingress.routes import LayerPlans, PlanRule

Held = Mapping[int, Sequence[str]]
"""Expert → nodes of its replicas."""


def table(held: Held) -> dict[str, FunctionReplicas]:
    return {
        f"e{expert}": FunctionReplicas(
            1, tuple(ReplicaAddress(f"{expert}{i}", f"127.0.0.1:{i + 1}", node=node) for i, node in enumerate(nodes))
        )
        for expert, nodes in held.items()
    }


def plans_of(held: Held, rule: PlanRule = "aebs") -> tuple[LayerPlans, Dispatcher]:
    loop = asyncio.new_event_loop()
    dispatcher = Dispatcher(loop)
    loop.close()
    dispatcher.update(table(held))
    plans = LayerPlans([[f"e{expert}" for expert in sorted(held)]], dispatcher, rule)
    plans.load()
    return plans, dispatcher


layouts = st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=6)


@settings(deadline=None)
@given(layouts, st.data())
def test_aebs_reaches_the_fewest_activated_experts_on_the_fullest_node(
    layout: list[set[str]], data: st.DataObject
) -> None:
    held = {expert: sorted(nodes) for expert, nodes in enumerate(layout)}
    ids = np.array(data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=8)))[:, None]
    experts = sorted(set(ids.ravel().tolist()))
    plans, _ = plans_of(held)
    nodes = plans.nodes(0, experts, ids)
    best = min(max(Counter(choice).values()) for choice in product(*[held[expert] for expert in experts]))
    if nodes is None:
        assert all(len(one) == 1 for one in held.values())
    else:
        assert all(node in held[expert] for expert, node in zip(experts, nodes, strict=True))
        assert max(Counter(nodes).values()) == best


def test_the_order_in_which_replicas_are_named_does_not_matter() -> None:
    ids = np.array([[0, 1], [2, 3]])
    one, _ = plans_of({0: ["b", "a"], 1: ["a"], 2: ["a", "b"], 3: ["b"]})
    other, _ = plans_of({3: ["b"], 2: ["b", "a"], 1: ["a"], 0: ["a", "b"]})
    assert one.nodes(0, [0, 1, 2, 3], ids) == other.nodes(0, [0, 1, 2, 3], ids)


def test_token_balanced_gives_the_busiest_expert_a_node_of_its_own() -> None:
    plans, _ = plans_of({expert: ["a", "b"] for expert in range(3)}, "token-balanced")
    ids = np.array([[2]] * 5 + [[0]] * 2 + [[1]] * 2)
    first, second, busiest = plans.nodes(0, [0, 1, 2], ids) or []
    assert first == second != busiest


def test_a_new_table_is_a_new_plan_and_a_missing_expert_none() -> None:
    ids = np.array([[0], [1]])
    plans, dispatcher = plans_of({0: ["a", "b"], 1: ["a"]})
    assert plans.nodes(0, [0, 1], ids) == ["b", "a"]
    dispatcher.update(table({0: ["a", "c"], 1: ["c"]}))
    assert plans.nodes(0, [0, 1], ids) == ["a", "c"]
    dispatcher.update(table({0: ["a", "c"], 1: []}))
    assert plans.nodes(0, [0, 1], ids) is None
    dispatcher.update(table({0: ["a"], 1: ["c"]}))
    assert plans.nodes(0, [0, 1], ids) is None


async def test_the_rule_is_loaded_beside_passes_when_experts_have_several_nodes() -> None:
    dispatcher = Dispatcher(asyncio.get_running_loop())
    plans = LayerPlans([["e0", "e1"]], dispatcher, "aebs")
    ids = np.array([[0], [1]])
    dispatcher.update(table({0: ["a"], 1: ["b"]}))
    assert plans.nodes(0, [0, 1], ids) is None
    assert plans._loading is None, "there was nothing to decide"
    dispatcher.update(table({0: ["a", "b"], 1: ["b"]}))
    assert plans.nodes(0, [0, 1], ids) is None
    assert plans._loading is not None
    await plans._loading
    assert plans.nodes(0, [0, 1], ids) == ["a", "b"]


async def test_a_rule_that_cannot_be_loaded_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(rule: str) -> None:
        raise ImportError("no numba here")

    monkeypatch.setattr("functions.ingress.routes.maker", missing)
    dispatcher = Dispatcher(asyncio.get_running_loop())
    plans = LayerPlans([["e0"]], dispatcher, "aebs")
    dispatcher.update(table({0: ["a", "b"]}))
    for _ in range(3):
        assert plans.nodes(0, [0], np.array([[0]])) is None
        await asyncio.wait([plans._loading] if plans._loading else [])
        await asyncio.sleep(0)
    said = [record.message for record in caplog.records if record.name == "functions.ingress.routes"]
    assert [text.count("no numba here") for text in said] == [1]
