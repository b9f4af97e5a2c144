"""The application of a function that serves experts in float32 and nothing else, computed with NumPy.

A process of it never imports torch, whose libraries take 130 MiB and seconds of each container; two matrix products
need neither. Workers that are forked share those libraries, so they keep to torch (:mod:`functions.serving.nodes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from functions.serving.arrays_expert import ArraysExpert, load_expert
from functions.serving.node_host import NodeHost
from functions.serving.settings import FunctionSettings
from functions.serving.token_bound import TokenBound
from functions.serving.weights import weights_folder
from functions.wire import arrays
from functions.wire.arrays import Array, Arrays
from functions.wire.layout import Chunk
from moe.manifest import Manifest

log = logging.getLogger(__name__)


def served(manifest: Manifest, settings: FunctionSettings) -> bool:
    """Whether NumPy computes all that this function serves: it has no bfloat16, no product in float16, no router."""
    nodes = {node.id: node for node in manifest.nodes}
    kinds = {nodes[node_id].kind if node_id in nodes else "" for node_id in settings.nodes}
    if settings.gate == "experts":
        return False
    return kinds == {"expert"} and manifest.dtype == "float32" and settings.device.kind == "cpu"


def expert_application(
    manifest: Manifest, settings: FunctionSettings, loop: asyncio.AbstractEventLoop, tokens: TokenBound | None = None
) -> NodeHost:
    """Map the weights of ``settings.nodes`` and host their programs. Raises ManifestError."""
    programs = {
        node_id: load_expert(weights_folder(settings, manifest, node_id), manifest, node_id)
        for node_id in settings.nodes
    }
    return NodeHost(programs, loop, ArraysDevice(), tokens=tokens)


class ArraysDevice:
    """:class:`functions.device.contract.Device`: the host, by NumPy."""

    in_thread = False
    deadline_s = float("inf")

    def decode(self, body: bytearray) -> Arrays:
        """As in ``Device``, ``[shapes in its header]``."""
        return arrays.decode(body)

    def encode(self, reply: Mapping[str, Array]) -> list[Chunk]:
        """As in ``Device``, ``[any shape]``."""
        return arrays.encode(reply)

    def run(self, program: ArraysExpert, calls: Sequence[Mapping[str, Array]], all_logits: bool) -> list[Arrays]:
        """One product of all calls ``[tokens, d]``."""
        if len(calls) == 1:
            return [{"y": program.run(calls[0]["x"])}]
        ends = np.cumsum([len(call["x"]) for call in calls])
        y = program.run(np.concatenate([call["x"] for call in calls]))
        return [{"y": part} for part in np.split(y, ends[:-1])]

    def check(self) -> None:
        """The host is always there."""
