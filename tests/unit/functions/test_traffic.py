"""Counters by machine, and the statistics made of them."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from functions.ingress.counts import Statistics
from functions.serving.instruments import IngressInstruments
from functions.serving.traffic import MAX_MACHINES, OTHERS, Traffic


def test_the_fullest_machine_is_the_one_with_most_activated_experts() -> None:
    traffic = Traffic(2, "a")
    traffic.scattered(1, ["a", "b", "b"], [9, 1, 2])
    traffic.scattered(1, ["a", "b", "c"], [1, 1, 1])
    traffic.scattered(1, ["", "", ""], [1, 1, 1])
    assert (traffic.fullest, traffic.scatters) == ([0, 3], [0, 2])
    assert (traffic.machines["b"].expert_calls, traffic.machines["b"].expert_tokens) == (3, 4)
    assert "" not in traffic.machines


def test_machines_beyond_the_bound_are_counted_together() -> None:
    traffic = Traffic(1)
    for number in range(MAX_MACHINES + 9):
        traffic.message(f"m{number}", 1, 1)
    assert len(traffic.machines) == MAX_MACHINES + 1
    assert traffic.machines[OTHERS].messages == 9


def test_a_machine_is_local_only_where_the_ingress_knows_its_own() -> None:
    assert [Traffic(1, "a").place(machine) for machine in ("a", "b")] == ["local", "remote"]
    assert Traffic(1, "").place("") == "remote"


async def test_statistics_forget_what_is_older_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    node_ids = ["segment-0", "expert-0-0", "expert-0-1", "segment-1"]
    instruments = IngressInstruments("m", node_ids, 1, loop.time, own_node="a", window_s=1000.0)
    statistics = Statistics(instruments, loop)
    now_s = loop.time()
    instruments.activations.add(0, np.array([[0, 1]]), now_s)
    instruments.traffic.scattered(0, ["a", "b"], [1, 1])
    document = json.loads(statistics.document())
    assert (document["tokens"], document["together"]) == ([[1, 1]], [[[0, 1], [1, 0]]])
    assert document["entropy_bits"] == [1.0]
    assert (document["machines"]["b"]["expert_calls"], document["local_share"]) == (1, 0.5)
    assert document["fullest_experts"] == [1.0]
    for _ in range(10):
        statistics._remember()
    later = json.loads(statistics.document())
    assert (later["machines"]["b"]["expert_calls"], later["local_share"], later["fullest_experts"]) == (0, None, [None])
    statistics.close()
