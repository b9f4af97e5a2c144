"""CPU and memory of pods from ``metrics.k8s.io``, where a cluster has it."""

from __future__ import annotations

import logging
from typing import Any

from gateway.backends.kubernetes.api import Api, ApiError, UnreachableError
from gateway.contract import NOT_MEASURED, Usage
from platform_words.resources import QuantityError, parse_quantity

log = logging.getLogger(__name__)


class PodUsage:
    """The last measurement of every pod. That API does not report CPU seconds since the start."""

    def __init__(self, api: Api, namespace: str, selector: str) -> None:
        self._api = api
        self._path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        self._selector = selector
        self._found: dict[str, Usage] = {}
        self.available: bool | None = None
        """Whether the cluster measures; None: not asked yet."""

    def of(self, pod: str) -> Usage:
        return self._found.get(pod, NOT_MEASURED)

    async def measure(self) -> None:
        """Read again; what cannot be read is not measured."""
        try:
            document = await self._api.get(self._path, {"labelSelector": self._selector})
        except (ApiError, UnreachableError) as error:
            if self.available is not False:
                log.info("no usage of replicas: %s", error)
            self.available, self._found = False, {}
            return
        self.available = True
        self._found = {item["metadata"]["name"]: _sum(item) for item in document.get("items") or ()}


def _sum(item: dict[str, Any]) -> Usage:
    try:
        usages = [container["usage"] for container in item["containers"]]
        cpu = sum(parse_quantity(usage["cpu"]) for usage in usages)
        memory = sum(parse_quantity(usage["memory"]) for usage in usages)
    except (KeyError, QuantityError):
        return NOT_MEASURED
    return Usage(None, float(1000 * cpu), int(memory))
