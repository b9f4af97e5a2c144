"""The gate on the experts' side: same answers, same routing, and every choice computed exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.harness.local_pipeline import LocalPipeline
from functions.device.tensors import HostDevice
from functions.ingress.gated import GatedLayers, _Part
from functions.ingress.handler import dispatching
from functions.serving.gated import GatedExperts
from functions.serving.instruments import IngressInstruments
from functions.serving.nodes import node_application
from functions.serving.settings import DeviceSettings, FunctionSettings, SettingsError, from_environment
from functions.serving.weights import needs
from functions.wire.errors import NodeFailedError
from moe.errors import ProgramInputError
from moe.families.routing import RouterProgram, dispatch
from moe.grouping import group
from moe.manifest import load
from moe.reference import WholeModel
from moe.runtime import load_node
from tests.doubles.generation import generate
from tests.parameters import some_fast
from tests.unit.functions.test_pass import TEXTS, ask, assert_close
from tests.unit.functions.test_pass_over_nodes import counted, statistics

PROMPTS = ["Only the chosen experts", "see", "A sum does not mind its order"]
EXPERTS = {"smoe_gate": "experts"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "functions"), some_fast([("auto", 6), ("aebs", 0), ("least-loaded", 0), ("local-first", 2)], fast=1)
)
def test_every_rule_gives_the_whole_models_answer(bert: Path, rule: str, functions: int) -> None:
    environ = {**EXPERTS, "smoe_dispatch": rule}
    with LocalPipeline(bert, replicas=2, max_functions=functions, nodes=("a", "b", "c"), environ=environ) as pipeline:
        for _ in range(2):
            answer = ask(pipeline.url, {"inputs": TEXTS}, timeout_s=100)  # every expert's process loads the rule first
            assert_close(answer["embeddings"], WholeModel(bert).embed(TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("family", some_fast(["mixtral", "qwen3_moe", "gpt2", "qwen2_moe"], fast=1))
def test_tokens_and_their_experts_are_those_of_the_other_gate(pipeline_of: Callable[[str], Path], family: str) -> None:
    import openai

    folder = pipeline_of(family)
    wanted = [one.text for one in generate(WholeModel(folder), PROMPTS, 6)]
    routed: dict[str, Any] = {}
    for gate in ("attention", "experts"):
        with LocalPipeline(folder, nodes=("a", "b"), environ={"smoe_gate": gate}) as pipeline:
            client = openai.OpenAI(base_url=f"{pipeline.url}/v1", api_key="none", max_retries=0, timeout=100)
            answer = client.completions.create(
                model="tiny", prompt=PROMPTS, max_tokens=6, temperature=0, extra_body={"return_routed_experts": True}
            )
            assert [choice.text for choice in answer.choices] == wanted
            routed[gate] = [choice.model_dump()["routed_experts"] for choice in answer.choices]
    assert routed["experts"] == routed["attention"]


@pytest.mark.slow
def test_every_function_gets_all_rows_and_what_was_routed_is_counted(bert: Path) -> None:
    spent = {}
    for gate in ("attention", "experts"):
        with LocalPipeline(bert, nodes=("a", "b"), environ={"smoe_gate": gate}) as pipeline:
            assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], WholeModel(bert).embed(TEXTS))
            messages = counted(pipeline, "smoe_machine_messages_total", machine="b", place="remote")
            segments = counted(pipeline, "smoe_machine_calls_total", machine="b", kind="segment")
            known = statistics(pipeline)
            spent[gate] = (messages - segments, known["tokens"], known["together"], known["fullest_experts"])
    assert spent["experts"][0] == 6  # two experts a layer are there, and three layers
    assert spent["experts"][1:] == spent["attention"][1:]


@pytest.mark.slow
def test_a_replica_that_dies_costs_no_answer(bert: Path) -> None:
    with LocalPipeline(
        bert, replicas=2, max_functions=6, nodes=("a", "b"), environ={**EXPERTS, "smoe_dispatch": "aebs"}
    ) as pipeline:
        ask(pipeline.url, {"inputs": TEXTS})
        victim = next(worker for worker in pipeline.workers if "experts" in worker.function and worker.node == "b")
        os.kill(victim.pid, signal.SIGKILL)
        assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], WholeModel(bert).embed(TEXTS))


# One layer in this process


@pytest.fixture(scope="module")
def router(bert: Path) -> RouterProgram:
    found = load_node(bert, load(bert), "segment-0").take_router()
    assert found is not None
    return found


def behind(bert: Path, router: RouterProgram, experts: Sequence[int]) -> GatedExperts:
    manifest = load(bert)
    programs = {expert: load_node(bert, manifest, f"expert-0-{expert}") for expert in experts}
    return GatedExperts("gate-0", router, programs, len(manifest.experts(0)))


def rows(bert: Path, tokens: int, seed: int) -> torch.Tensor:
    width = load(bert).architecture["hidden_size"]
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(6))
def test_machines_that_choose_alike_compute_every_choice_once_and_the_fullest_as_few_as_possible(
    bert: Path, router: RouterProgram, seed: int
) -> None:
    """Slots drawn at random, each machine a function of its own, against all choices of replicas."""
    draw = np.random.default_rng(seed)
    held: list[list[int]] = [[], [], []]
    for expert in range(4):
        for machine in draw.choice(3, draw.integers(1, 4), replace=False).tolist():
            held[machine].append(expert)
    slots = torch.tensor([experts + [-1] * (4 - len(experts)) for experts in held])
    x = rows(bert, 5, seed)
    ids, gates = router(x)
    whole = dispatch(ids, gates)
    outputs = {
        expert: load_node(bert, load(bert), f"expert-0-{expert}").run({"x": part})["y"]
        for expert, part in zip(whole.experts, whole.scatter(x), strict=True)
    }
    seen: list[int] = []
    activated = []
    for machine, experts in enumerate(held):
        if not experts:
            continue
        reply = behind(bert, router, experts).run({"x": x, "slots": slots, "machine": torch.tensor([machine])})
        activated.append(len(reply["experts"]))
        seen += reply["pairs"].tolist()
        assert torch.equal(reply["gates"], gates.reshape(-1)[reply["pairs"]])
        assert torch.equal(reply["experts"].repeat_interleave(reply["counts"]), ids.reshape(-1)[reply["pairs"]])
        for expert, y in zip(
            reply["experts"].tolist(), reply["y"].split_with_sizes(reply["counts"].tolist()), strict=True
        ):
            assert torch.equal(y, outputs[expert])
    assert sorted(seen) == list(range(ids.numel()))
    hosts = [[machine for machine, experts in enumerate(held) if expert in experts] for expert in whole.experts]
    assert max(activated) == min(max(Counter(choice).values()) for choice in product(*hosts))


def test_a_function_whose_experts_nobody_chose_answers_with_nothing(bert: Path, router: RouterProgram) -> None:
    x = rows(bert, 1, 0)
    idle = sorted(set(range(4)) - set(router(x)[0][0].tolist()))
    reply = behind(bert, router, idle).run({"x": x})
    assert {name: tensor.shape[0] for name, tensor in reply.items()} == dict.fromkeys(reply, 0)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"gates": torch.ones(1)}, "it takes x"),
        ({"slots": torch.zeros(2, 2, dtype=torch.int64), "machine": torch.tensor([2])}, "machines 0 to 1"),
        ({"slots": torch.zeros(2, dtype=torch.int64), "machine": torch.tensor([0])}, "int64"),
        ({"slots": torch.tensor([[0], [7]]), "machine": torch.tensor([0])}, "experts 0 to 3"),
    ],
)
def test_what_no_gate_takes_is_refused(
    bert: Path, router: RouterProgram, more: Mapping[str, torch.Tensor], word: str
) -> None:
    with pytest.raises(ProgramInputError, match=word):
        behind(bert, router, [0, 1]).run({"x": rows(bert, 2, 0), **more})


# Settings


def settings_of(folder: Path, nodes: str, **environ: str) -> FunctionSettings:
    return from_environment({"smoe_pipeline": str(folder), "smoe_nodes": nodes, **EXPERTS, **environ})


async def test_functions_that_did_not_route_alike_are_an_error(bert: Path) -> None:
    manifest, loop = load(bert), asyncio.get_running_loop()
    grouping = group(manifest)
    dispatcher, _ = dispatching(manifest, grouping, settings_of(bert, "ingress"), loop)
    instruments = IngressInstruments("m", [node.id for node in manifest.nodes], 3, loop.time)
    layers = GatedLayers(manifest, grouping, dispatcher, instruments, None)
    k = manifest.router.top_k
    part = _Part("f")
    part.reply = {
        "experts": np.array([1]),
        "counts": np.array([k - 1]),
        "pairs": np.arange(k - 1),
        "gates": np.ones(k - 1, np.float32),
        "y": np.zeros((k - 1, 2), np.float32),
    }
    with pytest.raises(NodeFailedError, match=f"routed {k - 1} of {k} choices"):
        layers._together(0, [part], 1)


@pytest.mark.parametrize("other", [{"smoe_dispatch": "token-balanced"}, {"smoe_transfer": "two-phase"}])
async def test_rules_that_need_the_routing_before_are_refused(bert: Path, other: dict[str, str]) -> None:
    manifest, settings = load(bert), settings_of(bert, "ingress", **other)
    with pytest.raises(SettingsError, match=r"smoe_gate is experts.*smoe_transfer is direct"):
        dispatching(manifest, group(manifest), settings, asyncio.get_running_loop())


async def test_a_gpu_is_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functions.serving.nodes.open_device", lambda settings: HostDevice())
    settings = replace(settings_of(bert, "expert-0-1"), device=DeviceSettings("cuda"))
    with pytest.raises(SettingsError, match="allowed there is attention"):
        node_application(load(bert), settings, asyncio.get_running_loop())


def test_an_experts_function_needs_its_layers_routers(bert: Path) -> None:
    manifest = load(bert)
    names = [need.name for need in needs(manifest, ("expert-1-2", "segment-3"), "experts")]
    files = {node.id: node.weights.file for node in manifest.nodes}
    assert names == list(dict.fromkeys(files[node] for node in ("expert-1-2", "segment-3", "segment-1")))
    assert [need.name for need in needs(manifest, ("expert-1-2",))] == [files["expert-1-2"]]
