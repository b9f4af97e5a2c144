"""From settings to the application of a segment, an expert, or a group of them."""

from __future__ import annotations

import asyncio

from functions.shared.node_host import NodeHost
from functions.shared.settings import FunctionSettings, SettingsError
from moe.manifest import Manifest
from moe.runtime import load_node


def node_application(manifest: Manifest, settings: FunctionSettings, loop: asyncio.AbstractEventLoop) -> NodeHost:
    """Map the weights of ``settings.nodes`` and host their programs. Raises SettingsError, ManifestError."""
    known = {node.id for node in manifest.nodes}
    for node_id in settings.nodes:
        if node_id not in known:
            raise SettingsError(f"smoe_nodes names {node_id!r}, which pipeline {manifest.name} does not have")
    programs = {node_id: load_node(settings.pipeline_dir, manifest, node_id) for node_id in settings.nodes}
    return NodeHost(programs, loop)
