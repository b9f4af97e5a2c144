"""Passes over replicas on several nodes: the answer is the whole model's, and no request is lost when a node dies."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.placement.activations import activations_of
from moe.reference import WholeModel
from tests.parameters import some_fast
from tests.unit.functions.test_pass import TEXTS, ask, asking, assert_close


def statistics(pipeline: LocalPipeline) -> dict[str, Any]:
    with urllib.request.urlopen(pipeline.url + "/statistics", timeout=100) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def counted(pipeline: LocalPipeline, name: str, **labels: str) -> float:
    """Sum of a metric's samples that have these labels."""
    with urllib.request.urlopen(pipeline.url + "/metrics", timeout=100) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "transfer"),
    some_fast(
        [
            ("local-first", "two-phase"),
            ("round-robin", "direct"),
            ("random", "two-phase"),
            ("token-balanced", "direct"),
            ("aebs", "two-phase"),
            ("auto", "adaptive"),
        ],
        fast=2,
    ),
)
def test_every_rule_and_transfer_gives_the_whole_models_answer(bert: Path, rule: str, transfer: str) -> None:
    environ = {"smoe_dispatch": rule, "smoe_transfer": transfer}
    with LocalPipeline(bert, replicas=2, max_functions=6, nodes=("a", "b", "c"), environ=environ) as pipeline:
        for _ in range(2):
            assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], WholeModel(bert).embed(TEXTS))


@pytest.mark.slow
def test_groups_for_another_node_travel_together_and_bytes_are_saved(bert: Path) -> None:
    texts, spent = TEXTS * 4, {}
    for transfer in ("direct", "two-phase"):
        with LocalPipeline(bert, nodes=("a", "b"), environ={"smoe_transfer": transfer}) as pipeline:
            assert_close(ask(pipeline.url, {"inputs": texts})["embeddings"], WholeModel(bert).embed(texts))
            spent[transfer] = {
                "calls": counted(pipeline, "smoe_machine_calls_total", machine="b", kind="expert"),
                "segments": counted(pipeline, "smoe_machine_calls_total", machine="b", kind="segment"),
                "messages": counted(pipeline, "smoe_machine_messages_total", machine="b", place="remote"),
                "bytes": counted(pipeline, "smoe_machine_bytes_total", machine="b", direction="sent"),
            }
            assert counted(pipeline, "smoe_node_retries_total") == 0
    direct, shared = spent["direct"], spent["two-phase"]
    assert direct["calls"] == shared["calls"] == 6
    assert direct["messages"] == 6 + direct["segments"]
    assert shared["messages"] == 3 + shared["segments"]  # one a layer
    assert shared["bytes"] < direct["bytes"]


@pytest.mark.slow
def test_statistics_are_those_of_the_routing_and_of_where_it_went(bert: Path) -> None:
    choices = {}

    def trace(node: str, tensors: Any, reply: Any) -> None:
        if "expert_ids" in reply:
            choices[node] = reply["expert_ids"].numpy()

    embeddings = WholeModel(bert, trace=trace).embed(TEXTS)
    expected = activations_of(np.stack([choices[f"segment-{i}"] for i in range(3)], axis=1), 4)
    with LocalPipeline(bert, nodes=("a", "b")) as pipeline:
        assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], embeddings)
        counts = statistics(pipeline)
    assert np.array_equal(counts["tokens"], expected.tokens)
    assert np.array_equal(counts["together"], expected.together)
    assert (counts["pipeline"], counts["node"]) == ("tiny", "a")
    machines = counts["machines"]
    assert (machines["a"]["place"], machines["b"]["place"]) == ("local", "remote")
    assert sum(one["expert_tokens"] for one in machines.values()) == expected.tokens.sum()
    assert counts["local_share"] == machines["a"]["expert_tokens"] / expected.tokens.sum()
    activated = (expected.tokens > 0).reshape(3, 2, 2).sum(axis=1)  # [layers, parity of the expert]: nodes in turn
    assert counts["fullest_experts"] == activated.max(axis=1).tolist()


@pytest.mark.slow
def test_without_nodes_nothing_is_said_of_machines(bert: Path) -> None:
    with LocalPipeline(bert, max_functions=3, environ={"smoe_transfer": "adaptive"}) as pipeline:
        ask(pipeline.url, {"inputs": TEXTS})
        counts = statistics(pipeline)
    assert (counts["machines"], counts["local_share"], counts["links"]) == ({}, None, {})
    assert counts["fullest_experts"] == [None, None, None]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "transfer"), [("local-first", "direct"), ("aebs", "two-phase")])
def test_a_node_that_dies_in_mid_pass_loses_no_request(bert: Path, rule: str, transfer: str) -> None:
    expected = WholeModel(bert).embed(TEXTS[:1])
    environ = {"smoe_dispatch": rule, "smoe_transfer": transfer}
    with (
        LocalPipeline(bert, replicas=2, max_functions=6, nodes=("a", "b"), environ=environ) as pipeline,
        asking(pipeline.url, expected, times=25) as failures,
    ):
        ask(pipeline.url, {"inputs": TEXTS[0]})
        for victim in pipeline.workers:
            if victim.node == "b":
                os.kill(victim.pid, signal.SIGKILL)
    assert failures == []
