"""The process backend: replicas are processes forked from a warm parent, on one machine.

It starts, limits, counts, drains and ends replicas and knows nothing of what they compute: images are entries of a
table given as a setting. It must never import ``functions``, ``moe`` or torch, and nothing it starts may outlive it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.backends.process.settings import BackoffSettings, ProcessSettings

if TYPE_CHECKING:
    from gateway.backends.process.backend import ProcessBackend

__all__ = ["BackoffSettings", "ProcessSettings", "create"]


def create(settings: ProcessSettings) -> ProcessBackend:
    """A backend that is not started yet; ``await backend.start()`` starts the warm parent.

    The import is inside because the warm parent lives in this package too and must not load the gateway's side.
    """
    from gateway.backends.process.backend import ProcessBackend

    return ProcessBackend(settings)
