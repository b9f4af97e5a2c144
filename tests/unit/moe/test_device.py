"""Programs on another device: nothing stays behind on the host.

No accelerator is needed: PyTorch's device ``meta`` has shapes and dtypes without numbers, and a dispatch mode refuses
every operation on tensors of two devices, as CUDA would.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moe.families.packing import Packing
from moe.manifest import load
from moe.reference import pack
from moe.runtime import READ_ON_HOST, load_node
from tests.unit.moe import tiny
from tests.unit.moe.conftest import Case

ELSEWHERE = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Operations take tensors of one device only; copying between devices is allowed, numbers (no axes) are too."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()]
        if len({tensor.device.type for tensor in found}) > 1 and "copy" not in str(call):
            raise RuntimeError(f"{call}: expected all tensors on the same device")
        return call(*args, **(kwargs or {}))


def calls_of(case: Case) -> dict[str, dict[str, Tensor]]:
    """What every node is asked in one pass of texts of unequal lengths."""
    seen: dict[str, dict[str, Tensor]] = {}
    model = case.pipeline(trace=lambda node_id, tensors, reply: seen.update({node_id: dict(tensors)}))
    inputs = pack(tiny.texts())
    if model.manifest.task == "seq2seq-lm":
        inputs |= {f"decoder_{name}": tensor for name, tensor in pack(tiny.texts((3, 5, 1, 2))).items()}
    model.forward(inputs)
    return seen


def test_no_node_of_any_family_leaves_a_tensor_on_the_host(case: Case) -> None:
    manifest = load(case.folder, verify=False)
    asked = calls_of(case)
    assert {node.id for node in manifest.nodes if node.kind == "segment"} <= set(asked)
    for node_id, tensors in asked.items():
        there = {name: t if name in READ_ON_HOST else t.to(ELSEWHERE) for name, t in tensors.items()}
        program = load_node(case.folder, manifest, node_id, ELSEWHERE)
        with OneDevice():
            replies = [program.run(there, all_logits=every, checked=True) for every in (False, True)]
        for reply in replies:
            assert {tensor.device for tensor in reply.values()} == {ELSEWHERE}, node_id
        host = load_node(case.folder, manifest, node_id).run(tensors)
        described = {name: (tensor.shape, tensor.dtype) for name, tensor in replies[0].items()}
        assert described == {name: (tensor.shape, tensor.dtype) for name, tensor in host.items()}


@pytest.mark.parametrize("left", ["weights", "input"])
def test_a_tensor_left_behind_would_be_noticed(case: Case, left: str) -> None:
    manifest = load(case.folder, verify=False)
    tensors = calls_of(case)["segment-1"]
    there = {name: t if name in READ_ON_HOST else t.to(ELSEWHERE) for name, t in tensors.items()}
    program = load_node(case.folder, manifest, "segment-1", torch.device("cpu") if left == "weights" else ELSEWHERE)
    with OneDevice(), pytest.raises(RuntimeError, match="same device"):
        program.run(there if left == "weights" else tensors, checked=True)


@pytest.mark.parametrize("lengths", [[3], [2, 2], [3, 1, 5]])
def test_index_tensors_count_texts_and_lie_on_the_device(lengths: list[int]) -> None:
    there = Packing(lengths, ELSEWHERE)
    assert {there.positions.device, there.starts.device, there.ends.device} == {ELSEWHERE}
    here = Packing(lengths)
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    assert here.starts.tolist() == starts
    assert here.ends.tolist() == [start + length - 1 for start, length in zip(starts, lengths, strict=True)]
