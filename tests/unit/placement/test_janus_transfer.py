"""Ways of a layer's rows between attention and expert instances: what arrives, what it counts, what it takes."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.janus.transfer import CASES, WAYS, Fabric, Layout, Phase, Port, adaptive, layout, traffic, transfer_s

FABRIC = Fabric(Port(3e-6, 1e-6, 300e9), Port(10e-6, 5e-6, 50e9), 10_240)
EXPERTS, TOP_K = 12, 3


def deliver(phases: list[Phase], held: dict[int, dict[int, int]]) -> None:
    """Carry out messages on ``held``, instance → token → number; a sender must have what it sends when its phase
    begins."""
    for phase in phases:
        before = {instance: dict(tokens) for instance, tokens in held.items()}
        for message in phase.messages:
            for target, token in itertools.product(message.targets, message.rows.tolist()):
                number = before.get(message.source, {})[token]
                there = held.setdefault(target, {})
                there[token] = there.get(token, 0) + number if message.adds else number


@st.composite
def routings(draw: st.DrawFn) -> tuple[Layout, np.ndarray, np.ndarray]:
    """Instances on nodes of two to four, experts' ids [tokens, k], and the instance that serves each [tokens, k]."""
    attention, experts, per_node = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = draw(st.integers(1, 24))
    ids = np.array([rng.choice(EXPERTS, TOP_K, replace=False) for _ in range(tokens)])
    served = (ids + rng.integers(0, 2, ids.shape)) % experts  # either of two replicas
    return layout(served, attention, experts, per_node), ids, served


def expert(number: int, x: int) -> int:
    """Integers, so that sums are exact in any order."""
    return (number + 1) * x + number**2


@given(routings(), st.sampled_from(tuple(itertools.product(WAYS, WAYS))))
def test_every_row_reaches_its_experts_and_every_result_its_instance(
    routing: tuple[Layout, np.ndarray, np.ndarray], ways: tuple[str, str]
) -> None:
    """There by one way and back by any other."""
    here, ids, served = routing
    x = {token: 1000 + 7 * token for token in range(len(ids))}
    held: dict[int, dict[int, int]] = {}
    for token in x:
        held.setdefault(int(here.owner[token]), {})[token] = x[token]
    deliver(WAYS[ways[0]][0](here), held)
    calls: Counter[tuple[int, int]] = Counter()
    sums: dict[int, dict[int, int]] = {}
    for instance in range(here.experts):
        arrived = held.get(here.attention + instance, {})
        mine = sums.setdefault(here.attention + instance, dict.fromkeys(x, 0))
        for token, choice in zip(*np.nonzero(served == instance), strict=True):
            number = int(ids[token, choice])
            mine[int(token)] += expert(number, arrived[int(token)])  # KeyError where the row never arrived
            calls[int(token), number] += 1
        if ways[0] == "routed":
            assert set(arrived) == set(np.flatnonzero(here.needs[:, instance]).tolist())
    assert calls == Counter((token, int(one)) for token in x for one in ids[token])
    deliver(WAYS[ways[1]][1](here), sums)
    for token in x:
        assert sums[int(here.owner[token])][token] == sum(expert(int(one), x[token]) for one in ids[token])


def everywhere(tokens: int, attention: int, experts: int) -> Layout:
    """Every token is served by every expert instance."""
    return layout(np.tile(np.arange(experts), (tokens, 1)), attention, experts)


@pytest.mark.parametrize(("attention", "experts"), [(1, 6), (4, 8), (8, 16), (16, 24)])
def test_messages_and_bytes_between_nodes_are_the_papers_counts(attention: int, experts: int) -> None:
    here = everywhere(64, attention, experts)
    nodes, there = -(-attention // 8), -(-experts // 8)
    counts = {
        "routed": (2 * attention * experts, 64 * experts * (10_240 + 8)),
        "direct": (attention * experts, 64 * experts * 10_240),
        "aggregated": (nodes * experts, 64 * experts * 10_240),
        "one-to-one": (nodes * there, 64 * there * 10_240),
        "sliced": (attention * there, 64 * there * 10_240),
    }
    back = {
        "routed": (attention * experts, 64 * experts * 10_240),
        "direct": (attention * experts, 64 * experts * 10_240),
        "aggregated": (attention * there, 64 * there * 10_240),
        "one-to-one": (nodes * there, 64 * there * 10_240),
        "sliced": (attention * there, 64 * there * 10_240),
    }
    for direction, expected in enumerate((counts, back)):
        for name, pair in expected.items():
            counted = traffic(WAYS[name][direction](here), 10_240)
            assert (counted["messages_between"], counted["bytes_between"]) == pair, (name, direction)


def test_seconds_are_those_of_the_busiest_port_by_hand() -> None:
    here, size = everywhere(64, 4, 8), 10_240
    row_s = size / 50e9
    inside_row_s = size / 300e9
    # An attention instance sends 8 messages of 16 rows; an expert instance takes 4 of them.
    assert FABRIC.seconds(WAYS["direct"][0](here)) == pytest.approx(10e-6 + 8 * (5e-6 + 16 * row_s))
    # 3 siblings' 16 rows in; then 2 messages of 64 rows out.
    exchange_s = 3e-6 + 3 * (1e-6 + 16 * inside_row_s)
    assert FABRIC.seconds(WAYS["aggregated"][0](here)) == pytest.approx(exchange_s + 10e-6 + 2 * (5e-6 + 64 * row_s))
    # One message of 64 rows, and one multicast of them.
    multicast_s = 3e-6 + 1e-6 + 64 * inside_row_s
    alone_s = exchange_s + 10e-6 + 5e-6 + 64 * row_s + multicast_s
    assert FABRIC.seconds(WAYS["one-to-one"][0](here)) == pytest.approx(alone_s)
    # 4 messages of 16 rows reach different instances, each of which takes in what the other three multicast.
    apart_s = 10e-6 + 5e-6 + 16 * row_s + 3e-6 + 4 * (1e-6 + 16 * inside_row_s)
    assert FABRIC.seconds(WAYS["sliced"][0](here)) == pytest.approx(apart_s)
    assert FABRIC.seconds([]) == FABRIC.seconds([Phase("inside", [])]) == 0.0


def test_few_senders_to_many_go_one_to_one_and_many_to_few_aggregated() -> None:
    assert adaptive(everywhere(64, 1, 16), FABRIC)[0] == "one-to-one"
    assert adaptive(everywhere(64, 8, 4), FABRIC)[0] == "aggregated"
    # Back, one message for each attention instance is spread over as many ports as the node has.
    assert adaptive(everywhere(64, 8, 16), FABRIC)[1] == "aggregated"


def test_adaptive_takes_no_longer_than_any_combination_of_cases() -> None:
    rng = np.random.default_rng(0)
    for attention, experts, tokens in itertools.product((1, 4, 8, 16), (6, 8, 20), (4, 256)):
        served = np.array([rng.choice(experts, 4, replace=False) for _ in range(tokens)])
        here = layout(served, attention, experts)
        combined = [
            FABRIC.seconds(WAYS[there][0](here)) + FABRIC.seconds(WAYS[back][1](here))
            for there, back in itertools.product(CASES, CASES)
        ]
        assert transfer_s(here, FABRIC, "adaptive") == pytest.approx(min(combined))


def test_two_phases_pay_where_messages_cost_and_not_where_they_are_free() -> None:
    here = everywhere(512, 8, 16)
    free = Fabric(FABRIC.inside, Port(10e-6, 0.0, 50e9), 10_240)
    dear = Fabric(FABRIC.inside, Port(10e-6, 50e-6, 50e9), 10_240)
    assert transfer_s(here, dear, "adaptive") < transfer_s(here, dear, "routed")
    served = np.random.default_rng(0).integers(
        0, 16, (512, 1)
    )  # one expert a token: the node's rows are sixteen times it
    assert transfer_s(layout(served, 8, 16), free, "adaptive") > transfer_s(layout(served, 8, 16), free, "routed")


@pytest.mark.parametrize("served", [np.zeros((0, 2), int), np.array([[3]]), np.array([[-1]])])
def test_choices_that_no_instance_serves_are_refused(served: np.ndarray) -> None:
    with pytest.raises(ValueError, match="1A3E on nodes of 8 cannot serve"):
        layout(served, 1, 3)
