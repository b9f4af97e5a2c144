"""An iteration of a decoder's instance holds several texts: replicas are chosen once a layer, for all of its tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.generation.instance import Instance
from functions.generation.sampling import Sampler, Sampling
from functions.generation.texts import Text
from functions.ingress.calls import PassContext
from functions.ingress.passes import PipelinePass
from functions.ingress.routes import LayerPlans
from functions.ingress.scatter import Scatter
from functions.serving.instruments import IngressInstruments
from functions.wire.layout import Part
from moe.cache import PAGE_TOKENS
from moe.grouping import group
from moe.reference import WholeModel
from tests.unit.functions.decoder_bench import Collected
from tests.unit.moe import tiny

PARTS = (1, 1, 40, 3)
"""Tokens of each text in the iteration: decodes, and parts of prompts."""


@dataclass
class Programs:
    """Calls nodes of this process, and remembers on which machine an expert was wanted."""

    model: WholeModel
    wanted: dict[str, list[str]] = field(default_factory=dict)
    chosen: dict[int, set[int]] = field(default_factory=dict)
    """Experts that any token of a layer chose."""
    texts: dict[str, list[int]] = field(default_factory=dict)
    """How many each call of a segment had."""

    def address(self, node_id: str) -> tuple[str, str]:
        return group(self.model.manifest).function_of(node_id).name, "/"

    async def call(
        self, node_id: str, tensors: Mapping[str, Any], context: PassContext, record: CallRecord, node: str = "",
        replica: str = "", headers: Any = (),
    ) -> dict[str, np.ndarray]:  # fmt: skip
        if not replica:
            self.wanted.setdefault(node_id, []).append(node)
        arrays = {
            name: np.frombuffer(value.payload, np.int64) if isinstance(value, Part) else value
            for name, value in tensors.items()
        }
        if "lengths" in arrays:
            self.texts.setdefault(node_id, []).append(len(arrays["lengths"]))
        reply = self.model.programs[node_id].run({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
        if "expert_ids" in reply:
            self.chosen[int(node_id.rpartition("-")[2])] = set(reply["expert_ids"].ravel().tolist())
        return {name: tensor.numpy() for name, tensor in reply.items()}


def placed(model: WholeModel, seed: int) -> dict[str, list[str]]:
    """Machines of each function, experts' at random."""
    draw = np.random.default_rng(seed)
    return {
        function.name: ["a"]
        if function.nodes[0].startswith("segment")
        else sorted(draw.choice(["a", "b", "c"], draw.integers(1, 4), replace=False).tolist())
        for function in group(model.manifest).functions
        if not function.is_ingress
    }


@pytest.mark.parametrize(("seed", "most"), [(0, None), (1, None), (2, None), (3, None), (0, 1), (1, 3)])
async def test_the_fullest_machine_has_as_few_as_all_texts_together_allow_and_logits_fit_their_messages(
    model: WholeModel, seed: int, most: int | None
) -> None:
    """``most``: texts whose logits fit one message; of none the likeliest tokens are enough."""
    manifest, loop = model.manifest, asyncio.get_running_loop()
    for segment in manifest.segments:
        program = model.programs[segment.id]
        program.open_cache(20 * PAGE_TOKENS * program.open_cache(1 << 20).bytes_per_token)
    held, dispatcher, programs = placed(model, seed), Dispatcher(loop), Programs(model)
    dispatcher.update(
        {
            name: FunctionReplicas(
                1, tuple(ReplicaAddress(f"{name}-{at}", f"127.0.0.1:{at}", node=at_) for at, at_ in enumerate(nodes, 1))
            )
            for name, nodes in held.items()
        }
    )
    names = [[programs.address(node.id)[0] for node in manifest.experts(at)] for at in range(manifest.layers)]
    plans = LayerPlans(names, dispatcher, "aebs")
    plans.load()
    instruments = IngressInstruments("m", [node.id for node in manifest.nodes], manifest.layers, loop.time)
    scatter = Scatter(manifest, programs, dispatcher, instruments, plans)  # type: ignore[arg-type]
    driver = PipelinePass(manifest, programs, scatter, instruments)  # type: ignore[arg-type]
    replicas = {name: dispatcher.replicas(name)[0] for name in held if "segment" in name}
    instance = Instance(manifest, programs, driver, dispatcher, replicas)  # type: ignore[arg-type]
    sampling = Sampling()
    if most is not None:
        instance.scored_tokens, sampling = most, Sampling(temperature=1.0)
    prompts = tiny.texts(PARTS, seed=seed)
    texts = [
        Text(list(one), 5, Sampler(sampling), Collected(), frozenset(), str(at), 640, loop.time())
        for at, one in enumerate(prompts)
    ]
    answers, _ = await instance.run(list(zip(texts, PARTS, strict=True)), PassContext("r", loop.time() + 60))
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = model.logits_ids([prompt])[0]
        assert int(np.argmax(answer[-1]) if not isinstance(answer, int) else answer) == int(wanted.argmax())
    groups = {None: [4], 1: [1, 1, 1, 1], 3: [3, 1]}[most]
    assert programs.texts[manifest.segments[-1].id] == groups and programs.texts[manifest.segments[0].id] == [4]
    for layer, names_of in enumerate(names):
        where = {expert: programs.wanted.get(node.id, []) for expert, node in enumerate(manifest.experts(layer))}
        assert {expert for expert, nodes in where.items() if nodes} == programs.chosen[layer]
        assert all(len(nodes) <= 1 for nodes in where.values()), "one call for all texts"
        hosts = [held[names_of[expert]] for expert in sorted(programs.chosen[layer])]
        least = min(max(Counter(choice).values()) for choice in product(*hosts))
        if any(len(nodes) > 1 for nodes in (held[name] for name in names_of)):
            assert max(Counter(nodes[0] for nodes in where.values() if nodes).values()) == least
    await instance.close()
    dispatcher.close()
