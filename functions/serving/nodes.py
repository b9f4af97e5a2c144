"""Builds the application of a segment, an expert, or a group of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from functions.device.contract import DeviceLostError
from functions.device.cuda_calls import CudaOpener
from functions.device.lent import Lender
from functions.device.tensors import GpuDevice, open_device
from functions.serving.device_loss import leave
from functions.serving.gated import GatedExperts
from functions.serving.kept_pages import KeptPages
from functions.serving.node_host import NodeHost
from functions.serving.settings import FunctionSettings, SettingsError
from functions.serving.token_bound import TokenBound
from functions.serving.weights import weights_folder
from functions.wire.messages import gate_stage
from moe.manifest import Manifest
from moe.runtime import NodeProgram, load_node

LAST_WORDS_S = 0.25
"""Time from a device's loss until the worker ends, in which replies that report it are sent."""


def node_application(
    manifest: Manifest, settings: FunctionSettings, loop: asyncio.AbstractEventLoop, tokens: TokenBound | None = None
) -> NodeHost:
    """Map the weights of ``settings.nodes``, put them on the GPU or map them there, and host their programs.

    Raises SettingsError, ManifestError. A worker whose GPU cannot be used ends, then or later, with a line in its log.
    """
    node_ids = {node.id for node in manifest.nodes}
    for node_id in settings.nodes:
        if node_id not in node_ids:
            raise SettingsError(f"smoe_nodes names {node_id!r}, which pipeline {manifest.name} does not have")
    try:
        device = open_device(settings.device)
        if isinstance(device, GpuDevice) and settings.weights_dir is not None:
            device.borrow(Lender(settings.weights_dir, CudaOpener()))
        programs = {
            node_id: device.load(weights_folder(settings, manifest, node_id), manifest, node_id)
            for node_id in settings.nodes
        }
    except DeviceLostError as error:
        leave(str(error))
    gates = _gates(manifest, settings, programs) if settings.gate == "experts" else {}
    kept_bytes = 0 if isinstance(device, GpuDevice) else settings.kv_mb << 20
    kept = KeptPages(programs, kept_bytes, loop, settings.caller_key(), settings.silence_s)
    return NodeHost(
        programs,
        loop,
        device,
        lambda reason: loop.call_later(LAST_WORDS_S, leave, reason),
        kept,
        gates,
        tokens,
    )


def _gates(
    manifest: Manifest, settings: FunctionSettings, programs: Mapping[str, NodeProgram]
) -> dict[str, GatedExperts]:
    """Take the routers out of the segments, and put those of the experts' layers before them: stage → program.

    A router is mapped from its segment's file, of which nothing else is read. Raises SettingsError, ManifestError.
    """
    if settings.device.kind != "cpu":
        raise SettingsError("smoe_gate is experts, which a GPU does not compute; allowed there is attention")
    by_layer: dict[int, dict[int, NodeProgram]] = {}
    for program in programs.values():
        if program.node.expert is None:
            program.take_router()
        elif program.node.layer is not None:
            by_layer.setdefault(program.node.layer, {})[program.node.expert] = program
    gates = {}
    for layer, experts in by_layer.items():
        segment = manifest.segments[layer].id
        router = load_node(weights_folder(settings, manifest, segment), manifest, segment).take_router()
        assert router is not None, "a layer with experts has one"
        name = gate_stage(layer)
        gates[name] = GatedExperts(name, router, experts, len(manifest.experts(layer)))
    return gates
