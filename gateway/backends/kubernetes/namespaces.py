"""Which namespaces of a cluster are for functions: those that their owner annotated ``openfaas=1``, as OpenFaaS has it
(https://docs.openfaas.com/reference/namespaces/). Namespaces of Kubernetes itself never are.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.backends.kubernetes.api import Api
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import DEFAULT_NAMESPACE, Namespace

ANNOTATION = "openfaas"
_YES = ("1", "true")
_KUBERNETES = "kube-"
"""Kubernetes keeps names that begin so for itself."""


class Namespaces:
    """The cluster's namespaces, followed by a watch of their metadata; ``settings.namespace`` is served always, under
    OpenFaaS's name for it."""

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._home = settings.namespace
        self._change = asyncio.Event()
        self._found = Informer(api, "/api/v1/namespaces", "", settings, self._changed, metadata_only=True)

    async def load(self) -> None:
        """Raises ApiError and UnreachableError."""
        await self._found.load()

    async def follow(self) -> None:
        """Never returns."""
        await self._found.follow()

    async def next_change(self, timeout_s: float) -> None:
        """Wait for a change since the last call of this method."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._change.wait()
        self._change.clear()

    def annotated(self) -> set[str]:
        """Names of the namespaces other than home that are for functions."""
        return {name for name in self._found.objects if not self.why_not(name)}

    def of(self, name: str) -> Namespace:
        """Labels and annotations of the namespace that clients know as ``name``."""
        document = self._found.objects.get(self._home if name == DEFAULT_NAMESPACE else name)
        meta = {} if document is None else document["metadata"]
        return Namespace(name, meta.get("annotations") or {}, meta.get("labels") or {})

    def why_not(self, name: str) -> str:
        """Why functions cannot be in ``name``, a sentence; empty where they can."""
        if name == self._home:
            return f"namespace {name!r} is known here as {DEFAULT_NAMESPACE}"
        if name == DEFAULT_NAMESPACE:
            return f"the name {name!r} stands for namespace {self._home!r} here"
        if name.startswith(_KUBERNETES):
            return f"namespace {name[:80]!r} belongs to Kubernetes itself"
        document = self._found.objects.get(name)
        if document is None:
            return f"namespace {name[:80]!r} does not exist"
        if (document["metadata"].get("annotations") or {}).get(ANNOTATION) not in _YES:
            return f"namespace {name!r} is not for functions: it lacks the annotation {ANNOTATION}=1"
        return ""

    def _changed(self, function: str | None) -> None:
        self._change.set()
