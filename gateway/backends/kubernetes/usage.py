"""CPU and memory of pods from ``metrics.k8s.io``, where a cluster has it."""

from __future__ import annotations

import logging
from typing import Any

from gateway.backends.kubernetes.api import Api, ApiError, UnreachableError
from gateway.contract import NOT_MEASURED, Usage
from platform_words.resources import QuantityError, parse_quantity

log = logging.getLogger(__name__)
NOT_SERVED = 404
MOST_SKIPPED = 31


class PodUsage:
    """The last measurement of every pod. That API does not report CPU seconds since the start."""

    def __init__(self, api: Api, namespace: str, selector: str) -> None:
        self._api = api
        self._path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        self._selector = selector
        self._found: dict[str, Usage] = {}
        self.available: bool | None = None
        """Whether the cluster measures; None: not asked yet."""
        self._skip = self._skipped = 0

    def of(self, pod: str) -> Usage:
        return self._found.get(pod, NOT_MEASURED)

    async def measure(self) -> None:
        """Read again; what cannot be read is not measured. Where nothing serves that API, calls in between do
        nothing, twice as many after each answer, at most ``MOST_SKIPPED``."""
        if self._skipped < self._skip:
            self._skipped += 1
            return
        self._skipped = 0
        try:
            document = await self._api.get(self._path, {"labelSelector": self._selector})
        except (ApiError, UnreachableError) as error:
            if self.available is not False:
                log.info("no usage of replicas: %s", error)
            self.available, self._found = False, {}
            missing = isinstance(error, ApiError) and error.code == NOT_SERVED
            self._skip = min(2 * self._skip + 1, MOST_SKIPPED) if missing else 0
            return
        self.available, self._skip = True, 0
        self._found = {item["metadata"]["name"]: _sum(item) for item in document.get("items") or ()}


def _sum(item: dict[str, Any]) -> Usage:
    try:
        usages = [container["usage"] for container in item["containers"]]
        cpu = sum(parse_quantity(usage["cpu"]) for usage in usages)
        memory = sum(parse_quantity(usage["memory"]) for usage in usages)
    except (KeyError, QuantityError):
        return NOT_MEASURED
    return Usage(None, float(1000 * cpu), int(memory))
