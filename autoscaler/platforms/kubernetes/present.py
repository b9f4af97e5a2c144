"""What a pipeline's Deployments and pods are now: listed at each look, or kept by watches."""

from __future__ import annotations

import time

from autoscaler.platforms.kubernetes.cache import (
    ClientSource,
    Kept,
    WatchCache,
    read_all,
    trimmed_deployment,
    trimmed_pod,
)
from autoscaler.platforms.kubernetes.client import KubernetesClient, Object
from autoscaler.platforms.kubernetes.store import Known
from platform_words.labels import FUNCTION_LABEL, PIPELINE_LABEL

RESIZE_SINCE = (1, 33)


class Cluster:
    """Reads the functions of ``pipeline`` into ``known``."""

    def __init__(self, client: KubernetesClient, pipeline: str) -> None:
        self._client = client
        self._pods = f"{PIPELINE_LABEL}={pipeline}"
        self.known = Known(pipeline)
        self.was_looked_at = False
        self._caches: tuple[WatchCache, WatchCache] | None = None
        self._version: tuple[int, int] | None = None

    @property
    def resizes_pods(self) -> bool:
        """Whether this Kubernetes has ``pods/resize``. Raises UnreachableError."""
        if self._version is None:
            self._version = self._client.version()
        return self._version >= RESIZE_SINCE

    def follow(self) -> None:
        """Keep Deployments and pods by watches from now on, instead of listing them at each look."""
        kinds = (("deployments", FUNCTION_LABEL, trimmed_deployment), ("pods", self._pods, trimmed_pod))
        first, second = (
            WatchCache(ClientSource(self._client, resource, selector), trimmed, time.monotonic)
            for resource, selector, trimmed in kinds
        )
        self._caches = first, second
        for cache in self._caches:
            cache.start()

    def behind(self) -> bool:
        """Whether the next look would list, because a watch is not whole now."""
        return any(cache.objects() is None for cache in self._caches or ())

    def close(self) -> None:
        """End the watches."""
        for cache in self._caches or ():
            cache.close()
        self._caches = None

    def look(self) -> None:
        """Take over what there is now. Raises UnreachableError, RefusedError."""
        deployments, pods = (None, None) if self._caches is None else (cache.fresh() for cache in self._caches)
        if deployments is None:
            ask = self._client.deployments
            deployments = read_all(lambda: [Kept.of(trimmed_deployment(one)) for one in ask(FUNCTION_LABEL)])
        if pods is None:
            pods = read_all(lambda: [Kept.of(trimmed_pod(one)) for one in self._client.pods(self._pods)])
        self.known.look(deployments, pods)
        self.was_looked_at = True

    def take_over(self, document: Object) -> None:
        """A Deployment as the API server answered with it."""
        kept = Kept.of(trimmed_deployment(document))
        self.known.put(kept)
        if self._caches is not None:
            self._caches[0].put(kept)

    def take_over_pod(self, document: Object) -> None:
        """A pod as the API server answered with it."""
        kept = Kept.of(trimmed_pod(document))
        self.known.put_pod(kept)
        if self._caches is not None:
            self._caches[1].put(kept)
