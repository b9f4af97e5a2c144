"""The tokens that a function takes at once follow the memory limit of its own cgroup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from functions import applications
from functions.device.tensors import HostDevice
from functions.ingress.room import TokenRoom
from functions.serving.kept_pages import KeptPages
from functions.serving.node_host import NodeHost
from functions.serving.server import ServerSettings
from functions.serving.settings import FunctionSettings
from functions.serving.token_bound import LOOK_EVERY_S, TokenBound
from moe.manifest import load
from platform_words.memory import CALL_TOKENS, CONTAINER, FORKED, MIB, RuntimeMemory
from smoe.deployment import DeploymentSettings, function_deployments
from tests.unit.functions.conftest import turns
from tests.unit.functions.test_node_host import Asker, programs, tensors_of


def test_a_bound_is_looked_at_now_and_then_and_its_changes_are_reported() -> None:
    now_s, fitting, seen = [0.0], [50], []
    bound = TokenBound(100, lambda: fitting[0], seen.append, lambda: now_s[0])
    assert bound.most == 50
    fitting[0] = 70
    assert bound.most == 50
    now_s[0] += LOOK_EVERY_S
    assert bound.most == 70
    fitting[0], now_s[0] = 200, 1.0
    assert (bound.most, seen) == (100, [50, 70, 100])
    assert TokenBound(0, lambda: 50).most == 0


@pytest.mark.parametrize("family", ["bert", "mixtral"])
@pytest.mark.parametrize("runtime", [FORKED, CONTAINER], ids=["forked", "container"])
def test_at_the_limit_of_its_deployment_a_function_takes_what_that_was_sized_for_and_below_it_fewer(
    pipeline_of: Callable[[str], Path], family: str, runtime: RuntimeMemory
) -> None:
    manifest, peak = load(pipeline_of(family), verify=False), 400_000
    for deployment in function_deployments(manifest, DeploymentSettings(runtime=runtime, peak_tokens=peak)):
        limit = [int(deployment["limits"]["memory"].removesuffix("Mi")) * MIB]
        nodes = tuple(deployment["envVars"]["smoe_nodes"].split(","))
        kept_mib, bounds = int(deployment["envVars"].get("smoe_kv_mb", 0)), ServerSettings()
        settings = FunctionSettings(pipeline_of(family), nodes, max_tokens=peak, kv_mb=kept_mib)

        def taken(limit: int, settings: FunctionSettings = settings, bounds: ServerSettings = bounds) -> int:
            return applications.token_bound(manifest, settings, bounds, runtime, lambda: limit).most

        assert taken(limit[0]) == peak, nodes
        least = min(peak, max(CALL_TOKENS, manifest.tokenizer.max_tokens if manifest.tokenizer else 0))
        assert taken(MIB) == least
        fewer = taken(limit[0] * 3 // 4)
        assert least <= fewer < peak, nodes
        if nodes != ("ingress",):
            assert bounds.max_held_bytes < limit[0]


async def test_a_function_refuses_what_its_lowered_limit_has_no_room_for_and_takes_it_again(bert: Path) -> None:
    fitting = [10]
    bound = TokenBound(10, lambda: fitting[0], clock=iter(range(100)).__next__)
    host = NodeHost(programs(bert, "expert-0-0"), asyncio.get_running_loop(), HostDevice(), tokens=bound)
    asker = Asker(host)
    statuses = []
    for most in (10, 5, 10):
        fitting[0] = most
        asker.ask({"x": torch.zeros(8, 32)})
        statuses.append((await asker.all())[-1].status)
    assert statuses == [200, 413, 200]


async def test_passes_that_waited_as_the_bound_was_lowered_below_them_go_alone() -> None:
    fitting = [10]
    room = TokenRoom(TokenBound(10, lambda: fitting[0], clock=iter(range(100)).__next__), 10)
    loop = asyncio.get_running_loop()
    first = await room.take(6, loop.time() + 600)
    second = asyncio.ensure_future(room.take(8, loop.time() + 600))
    third = asyncio.ensure_future(room.take(2, loop.time() + 600))
    await turns(3)
    fitting[0] = 5
    room.give(first)
    await turns(3)
    assert (second.done(), third.done()) == (True, False)
    room.give(await second)
    assert await third == 2


async def test_texts_that_hold_pages_go_on_as_the_bound_falls_below_them(pipeline_of: Callable[[str], Path]) -> None:
    folder, node, fitting = pipeline_of("mixtral"), "segment-0", [100]
    loop = asyncio.get_running_loop()
    program = programs(folder, node)[node]
    bound = TokenBound(100, lambda: fitting[0], clock=iter(range(100)).__next__)
    kept = KeptPages({node: program}, MIB, loop)
    host = NodeHost({node: program}, loop, HostDevice(), kept=kept, tokens=bound)
    asker = Asker(host)
    ids = torch.arange(41)

    def of_text(sequence: int, tokens: torch.Tensor, start: int = 0) -> dict[str, torch.Tensor]:
        numbers = {"lengths": len(tokens), "sequences": sequence, "starts": start, "parents": -1}
        return {"token_ids": tokens, **{name: torch.tensor([number]) for name, number in numbers.items()}}

    asker.ask(of_text(1, ids[:40]))
    await asker.all()
    fitting[0] = 30
    asker.ask(of_text(1, ids[40:], 40))
    asker.ask(of_text(2, ids))
    _, went_on, refused = await asker.all()
    whole = programs(folder, node)[node].run({"token_ids": ids, "lengths": torch.tensor([41])})
    assert torch.allclose(tensors_of(went_on)["residual"][-1], whole["residual"][-1], atol=1e-5)
    assert refused.status == 413
    message = b"the call has 41 tokens; this function takes at most 30 (its memory limit was lowered or is too low for "
    assert message + b"smoe_max_tokens, 100)" in bytes(refused.chunks[0])
