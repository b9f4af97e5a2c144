"""What a standby does before it knows its function: read the pipeline's manifest and go through one call; one that is
to be an ingress reads the tokenizer instead.

A forked process shares its parent's memory until it writes; the first call of anything writes in many places. A
rehearsed one has done that before it is needed.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

from functions.dispatch.client import request_head
from functions.serving.file_state import FileState, file_state
from functions.serving.nodes import node_application
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings
from functions.wire import format as wire
from functions.wire.messages import REQUEST_ID
from moe.manifest import Manifest, Node, load
from moe.names import MANIFEST_FILE
from moe.runtime import DTYPES
from moe.tokenize import TextTokenizer

REHEARSAL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Preloaded:
    """What was read of a pipeline's folder ahead."""

    manifest: Manifest
    tokenizer: TextTokenizer | None
    """An ingress's tokenizer, loaded; None for other functions."""
    path: Path
    """Path of the manifest's file."""
    state: FileState

    def is_of(self, directory: Path) -> bool:
        """Whether it is this folder's and its manifest, which names the tokenizer's content, has not changed since."""
        path = directory / MANIFEST_FILE
        return path == self.path and file_state(path) == self.state


def read(settings: FunctionSettings) -> Preloaded:
    """Raises MoeError."""
    path = settings.pipeline_dir / MANIFEST_FILE
    state = file_state(path)
    manifest = load(settings.pipeline_dir, verify=False, trusted=True)
    tokenizer = None
    if settings.is_ingress and manifest.tokenizer is not None:
        tokenizer = TextTokenizer(settings.pipeline_dir, manifest.tokenizer)
        tokenizer.encode("warm")
    return Preloaded(manifest, tokenizer, path, state)


def rehearse(settings: FunctionSettings, manifest: Manifest, loop: asyncio.AbstractEventLoop) -> None:
    """Host the smallest expert on a socket, answer one call of one token, and let go of it again."""
    node = min((node for node in manifest.nodes if node.kind == "expert"), key=lambda node: node.parameter_bytes)
    loop.run_until_complete(_rehearse(settings, manifest, node))


async def _rehearse(settings: FunctionSettings, manifest: Manifest, node: Node) -> None:
    loop = asyncio.get_running_loop()
    application = node_application(manifest, _of_node(settings, node), loop)
    server = FunctionServer(application, ServerSettings(settle_s=0.0, drain_s=1.0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.start(listener)
        x = torch.zeros((1, int(manifest.architecture["hidden_size"])), dtype=DTYPES[manifest.dtype])
        parts = wire.encode({"x": x})
        port = listener.getsockname()[1]
        length = sum(len(part) for part in parts)
        head = request_head("/", f"127.0.0.1:{port}", wire.CONTENT_TYPE, length, [(REQUEST_ID, "rehearsal")])
        async with asyncio.timeout(REHEARSAL_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.writelines([head, *parts])
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
        await server.drain()
    application.close()


def _of_node(settings: FunctionSettings, node: Node) -> FunctionSettings:
    return FunctionSettings(settings.pipeline_dir, (node.id,), weights_dir=settings.weights_dir)
