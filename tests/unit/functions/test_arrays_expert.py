"""Experts by NumPy: torch's programs are the measure, and a process of them never imports torch."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from functions.serving.arrays_expert import load_expert
from functions.serving.expert_nodes import ArraysDevice, expert_application, served
from functions.serving.settings import FunctionSettings, from_environment
from functions.wire import format as wire
from functions.wire.messages import Reply, Request
from moe.errors import ManifestError, ProgramInputError
from moe.manifest import Manifest, load
from moe.runtime import load_node
from tests.parameters import some_fast
from tests.unit.moe import tiny

KINDS_OF_EXPERT = ("bert", "mixtral", "gpt_oss")
"""Plain, gated, and gated with clamps."""
RELATIVE = 1e-6
"""Largest difference from torch, of the largest number of the reply: rounding of float32 over sums of this length."""


def manifest_of(folder: Path) -> Manifest:
    return load(folder, verify=False)


def experts(manifest: Manifest) -> list[str]:
    return [node.id for node in manifest.nodes if node.kind == "expert"]


@pytest.mark.parametrize("family", some_fast(sorted(tiny.BUILDERS, key=lambda f: f not in KINDS_OF_EXPERT)))
def test_every_family_s_experts_compute_as_torch_does(pipeline_of: Callable[[str], Path], family: str) -> None:
    folder = pipeline_of(family)
    manifest = manifest_of(folder)
    for node_id in experts(manifest):
        program = load_node(folder, manifest, node_id)
        for tokens in (1, 7, 300):
            x = 3 * torch.randn(tokens, program.rules.widths["x"], generator=torch.Generator().manual_seed(tokens))
            expected = program.run({"x": x})["y"].numpy()
            answer = load_expert(folder, manifest, node_id).run(x.numpy())
            assert np.abs(answer - expected).max() <= RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations_are_torch_s_from_the_smallest_to_the_largest_numbers(name: str) -> None:
    from functions.serving import arrays_expert
    from moe.families.linear import ACTIVATIONS

    small, large = torch.logspace(-38, -1, 500), torch.linspace(0.1, 120, 20_000)
    x = torch.cat([-large, -small, torch.zeros(1), small, large])
    expected, found = ACTIVATIONS[name](x).numpy(), x.numpy().copy()
    arrays_expert.ACTIVATIONS[name](found)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1.5e-6)


def test_calls_computed_together_are_answered_as_those_computed_alone(bert: Path) -> None:
    program = load_expert(bert, manifest_of(bert), "expert-0-0")
    calls = [{"x": np.random.default_rng(seed).normal(size=(seed, 32)).astype(np.float32)} for seed in (1, 4, 2)]
    together = ArraysDevice().run(program, calls, all_logits=False)
    for call, reply in zip(calls, together, strict=True):
        np.testing.assert_allclose(reply["y"], program.run(call["x"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"x": np.zeros((0, 32), np.float32)}, id="no token"),
        pytest.param({"x": np.zeros((2, 31), np.float32)}, id="another width"),
        pytest.param({"x": np.zeros((2, 32), np.float16)}, id="another dtype"),
        pytest.param({"x": np.zeros((2, 32), np.float32), "z": np.zeros(1)}, id="one more"),
    ],
)
def test_what_torch_s_program_refuses_is_refused(bert: Path, tensors: dict[str, Any]) -> None:
    manifest = manifest_of(bert)
    with pytest.raises(ProgramInputError):
        load_expert(bert, manifest, "expert-0-0").check(tensors)
    with pytest.raises(ProgramInputError):
        load_node(bert, manifest, "expert-0-0").check({k: torch.from_numpy(v) for k, v in tensors.items()})


def test_a_file_that_holds_something_else_is_refused_by_name(bert: Path, tmp_path: Path) -> None:
    manifest = manifest_of(bert)
    file = tmp_path / manifest.node("expert-0-0").weights.file
    file.parent.mkdir(parents=True)
    weights = load_file(bert / manifest.node("expert-0-0").weights.file)
    save_file({f"other.{name}": tensor for name, tensor in weights.items()}, file)
    with pytest.raises(ManifestError, match="is missing"):
        load_expert(tmp_path, manifest, "expert-0-0")
    file.write_bytes(b"no safetensors file")
    with pytest.raises(ManifestError, match="not a readable safetensors file"):
        load_expert(tmp_path, manifest, "expert-0-0")


def test_only_experts_in_float32_on_the_host_are_numpy_s(pipeline_of: Callable[[str], Path]) -> None:
    folder = pipeline_of("bert")
    manifest = manifest_of(folder)

    def by_numpy(nodes: str, **more: str) -> bool:
        environ = {"smoe_pipeline": str(folder), "smoe_nodes": nodes, **more}
        return served(manifest, from_environment(environ))

    assert by_numpy("expert-0-0") and by_numpy("expert-0-0,expert-1-0")
    assert not by_numpy("segment-0") and not by_numpy("expert-0-0,segment-0") and not by_numpy("expert-9-9")
    assert not by_numpy("expert-0-0", smoe_device="cuda")


async def test_a_call_of_the_wire_is_answered_as_by_torch(bert: Path) -> None:
    manifest = manifest_of(bert)
    host = expert_application(manifest, FunctionSettings(bert, ("expert-0-0",)), asyncio.get_running_loop())
    x = torch.randn(5, 32)
    body, answered = bytearray(wire.encode_bytes({"x": x})), asyncio.get_running_loop().create_future()
    host.submit(Request("POST", "/", {}, body, 0.0), answered.set_result)
    reply: Reply = await answered
    decoded = wire.decode(b"".join(reply.chunks))["y"]
    expected = load_node(bert, manifest, "expert-0-0").run({"x": x})["y"]
    torch.testing.assert_close(decoded, expected, rtol=1e-5, atol=1e-6)


SERVES_ONE_CALL = """
import sys, time
from functions.app import FunctionApp
from functions.serving.settings import from_environment
from functions.wire import arrays
import numpy as np, os
app = FunctionApp(from_environment({"smoe_engine": "numpy", **os.environ}, later=True))
end_s = time.monotonic() + 50
while not app.server.ready and time.monotonic() < end_s:
    time.sleep(0.01)
body = b"".join(arrays.encode({"x": np.zeros((3, 32), np.float32)}))
reply = app.test_client().post("/", data=body)
assert reply.status_code == 200, reply.data
app.close()
heavy = ("torch", "transformers", "sklearn", "scipy", "numba", "pandas", "tokenizers")
print(*(name for name in heavy if name in sys.modules))
"""


@pytest.mark.slow
def test_a_process_that_serves_experts_imports_none_of_the_large_libraries(bert: Path) -> None:
    environ = {**os.environ, "smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0"}
    command = [sys.executable, "-c", SERVES_ONE_CALL]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
