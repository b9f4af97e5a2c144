"""Figures 8 and 10: steps differ in what they name alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.janus import figures
from benchmarks.janus.decode import FABRIC, SAMPLES, V2, Model
from benchmarks.janus.transfer import Fabric, Port
from benchmarks.placement.synthetic_routing import synthetic

FREE = Fabric(Port(0.0, 0.0, 1e30), Port(0.0, 0.0, 1e30), FABRIC.row_bytes)


@pytest.fixture(scope="module")
def here() -> figures.Instances:
    drawn = synthetic("lognormal", 2 * SAMPLES * 64, 1, V2.experts, V2.top_k, 3)
    return figures.Instances(V2, 4, 8, drawn, 1000)


def test_ways_of_transfer_take_the_same_where_links_cost_nothing(here: figures.Instances) -> None:
    table = here.tables()["in turn"]
    taken_s = {
        way: here.tpot_s(64, table, "round-robin", way, FREE) for way in ("routed", "direct", "sliced", "adaptive")
    }
    assert list(taken_s.values()) == pytest.approx([taken_s["routed"]] * 4)
    assert here.tpot_s(64, table, "round-robin", "adaptive") > taken_s["adaptive"]


def test_balanced_dispatch_and_placement_take_less_than_random_ones(here: figures.Instances) -> None:
    tables = here.tables()
    balanced_s = here.tpot_s(64, tables["activations"], "aebs", "adaptive")
    for rule in figures.OPPONENTS:
        assert balanced_s < here.tpot_s(64, tables["in turn"], rule, "adaptive")


def test_experts_in_turn_all_have_a_place_and_spare_ones_go_round(here: figures.Instances) -> None:
    start = here.tables()["in turn"].start
    replicas = start[1:] - start[:-1]
    assert replicas.sum() == 8 * V2.slots
    assert set(replicas) == {1, 2} and (replicas[: 8 * V2.slots - V2.experts] == 2).all()


def test_without_spare_slots_dispatch_has_nothing_to_choose() -> None:
    """27 experts an instance of 216 on eight: whatever the rule, the same replicas are activated."""
    full = Model(experts=8 * V2.slots)
    drawn = synthetic("lognormal", 2 * SAMPLES * 16, 1, full.experts, full.top_k, 0)
    one = figures.Instances(full, 1, 8, drawn, 1000)
    table = one.tables()["activations"]
    taken_s = [one.tpot_s(16, table, rule, "adaptive") for rule in ("aebs", *figures.OPPONENTS)]
    assert taken_s == pytest.approx([taken_s[0]] * 3)


def test_a_layer_counts_what_its_ways_send(here: figures.Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "instances", lambda model, attention, expert, context, seed: replace(
        here, attention=attention, expert=expert
    ))  # fmt: skip
    counts = figures.counted(16, 3)
    assert counts["one-to-one"]["messages between nodes"] == 4  # one attention node, two of experts, there and back
    assert counts["sliced"]["messages between nodes"] == counts["aggregated"]["messages between nodes"] == 32
    assert counts["direct"]["messages between nodes"] < counts["routed"]["messages between nodes"]


def test_what_a_step_saves_is_a_part_of_the_step_before() -> None:
    assert figures.saves([2.0, 4.0], [1.0, 3.0]) == [0.5, 0.25]
