"""What a function's replicas should have now, as it stands in the annotation ``smoe.live`` of its Deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from platform_words.resources import RESIZED, parse_quantity, same_quantity


@dataclass(frozen=True)
class Live:
    """Limits and requests of a replica's container, as Kubernetes writes them, and how many calls it takes at once."""

    limits: Mapping[str, str]
    requests: Mapping[str, str]
    max_inflight: int

    @staticmethod
    def parse(text: str) -> Live:
        """Raises ValueError, KeyError and TypeError for what :meth:`text` did not write."""
        fields = orjson.loads(text)
        return Live(dict(fields["limits"]), dict(fields["requests"]), int(fields["max_inflight"]))

    def text(self) -> str:
        """Gateway and controller write the same text for the same amounts, so neither undoes the other's notes."""
        fields = {"limits": dict(self.limits), "requests": dict(self.requests), "max_inflight": self.max_inflight}
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()

    def settings(self) -> str:
        """Content of a replica's live settings file."""
        return orjson.dumps({"max_inflight": self.max_inflight}).decode()

    def full_requests(self) -> dict[str, str]:
        """Requests as the API server fills them in: a limit without a request is requested whole."""
        return {**{name: amount for name, amount in self.limits.items() if name in RESIZED}, **self.requests}

    def waiting(self, cpu: str) -> Live:
        """The same with a CPU request of ``cpu`` at most, as a standby has it; unchanged where that would be another
        class of service, which no live pod changes."""
        asked = self.full_requests().get("cpu")
        if asked is None or self.guaranteed or parse_quantity(asked) <= parse_quantity(cpu):
            return self
        return replace(self, requests={**self.requests, "cpu": cpu})

    @property
    def guaranteed(self) -> bool:
        """Kubernetes' class of service: requests equal limits. A live pod keeps its class."""
        full = {**self.limits, **self.requests}
        return all(name in self.limits and same_quantity(full[name], self.limits[name]) for name in RESIZED)
