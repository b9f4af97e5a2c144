"""What an ingress knows about routing and nodes, over a sliding window, as JSON: ``GET /statistics``.

``tokens`` and ``together`` are what ``smoe placement plan --statistics`` takes. Counters by machine are taken every
tenth of the window and subtracted, so that they cover the same time as the activations, a tenth more or less.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from functions.dispatch.activations import PERIODS, entropy_bits
from functions.dispatch.replicas import Opening
from functions.serving.instruments import IngressInstruments
from functions.serving.traffic import MachineTraffic, Traffic


@dataclass(frozen=True)
class _Past:
    """Counters at a moment."""

    machines: dict[str, MachineTraffic]
    fullest: list[int]
    scatters: list[int]


class Statistics:
    """The statistics of one ingress."""

    def __init__(self, instruments: IngressInstruments, loop: asyncio.AbstractEventLoop) -> None:
        self._instruments = instruments
        self._loop = loop
        self._window_s = instruments.activations.window_s
        self._past: deque[_Past] = deque(maxlen=PERIODS)
        self._timer: asyncio.TimerHandle | None = None
        self.openings: Collection[Opening] = ()
        """Activations of standbys, the latest last."""
        self.generation: Callable[[], dict[str, Any]] | None = None
        """What a decoder's instances do."""
        self._remember()

    def close(self) -> None:
        """Remember no more."""
        if self._timer is not None:
            self._timer.cancel()

    def document(self) -> bytes:
        """The JSON object that docs/placement.md describes."""
        traffic, past = self._instruments.traffic, self._past[0]
        tokens, together = self._instruments.activations.totals(self._loop.time())
        document = {
            "pipeline": self._instruments.pipeline,
            "node": traffic.machine,
            "window_s": self._window_s,
            "tokens": tokens.tolist(),
            "together": together.tolist(),
            "entropy_bits": entropy_bits(tokens).tolist(),
            "machines": _machines(traffic, past),
            "local_share": _local_share(traffic, past),
            "fullest_experts": [
                (now - then) / (count - counted) if count > counted else None
                for now, then, count, counted in zip(
                    traffic.fullest, past.fullest, traffic.scatters, past.scatters, strict=True
                )
            ],
            "activations": [asdict(opening) for opening in self.openings],
            "links": {machine: asdict(link) for machine, link in traffic.links.items()},
        }
        if self.generation is not None:
            document["generation"] = self.generation()
        return orjson.dumps(document)

    def _remember(self) -> None:
        traffic = self._instruments.traffic
        machines = {machine: machine_traffic.copy() for machine, machine_traffic in traffic.machines.items()}
        self._past.append(_Past(machines, list(traffic.fullest), list(traffic.scatters)))
        self._timer = self._loop.call_later(self._window_s / PERIODS, self._remember)


def _machines(traffic: Traffic, past: _Past) -> dict[str, dict[str, Any]]:
    """Traffic of each machine within the window."""
    return {
        machine: {
            "place": traffic.place(machine),
            **asdict(machine_traffic.minus(past.machines.get(machine, MachineTraffic()))),
        }
        for machine, machine_traffic in traffic.machines.items()
    }


def _local_share(traffic: Traffic, past: _Past) -> float | None:
    """Part of the experts' tokens that stayed on the ingress's machine; None where no machine is known."""
    tokens = {
        machine: machine_traffic.expert_tokens - past.machines.get(machine, MachineTraffic()).expert_tokens
        for machine, machine_traffic in traffic.machines.items()
    }
    total = sum(tokens.values())
    return tokens.get(traffic.machine, 0) / total if total and traffic.machine else None
