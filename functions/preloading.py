"""What a standby does before it knows its function: read the pipeline's manifest and rehearse the smallest expert; one
that is to be an ingress reads the tokenizer instead.

A forked process shares its parent's memory until it writes; the first call of anything writes in many places. A
prepared one has done that before it is needed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from functions.serving.file_state import FileState, file_state
from functions.serving.nodes import node_application
from functions.serving.rehearsal import rehearse
from functions.serving.settings import FunctionSettings
from moe.manifest import Manifest, load
from moe.names import MANIFEST_FILE
from moe.tokenize import TextTokenizer


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


async def rehearse_smallest(settings: FunctionSettings, manifest: Manifest) -> None:
    """Host the pipeline's smallest expert, rehearse it, and let go of it again."""
    node = min((node for node in manifest.nodes if node.kind == "expert"), key=lambda node: node.parameter_bytes)
    of_node = FunctionSettings(settings.pipeline_dir, (node.id,), weights_dir=settings.weights_dir)
    application = node_application(manifest, of_node, asyncio.get_running_loop())
    await rehearse(application)
    application.close()
