"""What an ingress has sent to which machine, and the measured links to them: counters, for metrics and statistics.

The label is ``machine``, since ``node`` names a part of the pipeline in all other metrics of the ingress. Replicas
whose machine is unknown are not counted, so on a platform without machines nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from functions.serving import metric_names as names

MAX_MACHINES = 64
"""Machines beyond are counted together as ``OTHERS``: the set of label values is bounded."""
OTHERS = "others"


@dataclass(slots=True)
class MachineTraffic:
    """Calls of experts and segments that a machine served, and the messages and bytes they took."""

    expert_calls: int = 0
    expert_tokens: int = 0
    segment_calls: int = 0
    messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def minus(self, earlier: MachineTraffic) -> MachineTraffic:
        """What came since."""
        return MachineTraffic(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))

    def copy(self) -> MachineTraffic:
        return self.minus(MachineTraffic())


@dataclass(frozen=True)
class Link:
    """A network link to a machine as the ingress measured it: there and back."""

    hop_s: float
    """One small message."""
    message_s: float
    """One more small message, sent next to others."""
    spread_s: float
    """One more group in a message that a worker there spreads to its siblings."""
    bytes_per_s: float


@dataclass(slots=True)
class Traffic:
    """All machines an ingress on ``machine`` speaks to."""

    layers: int
    machine: str = ""
    machines: dict[str, MachineTraffic] = field(default_factory=dict)
    fullest: list[int] = field(init=False)
    """[layers]: activated experts of the fullest machine, summed over ``scatters``."""
    scatters: list[int] = field(init=False)
    """[layers]: scatters of the layer whose replicas' machines are known."""
    links: Mapping[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fullest, self.scatters = [0] * self.layers, [0] * self.layers

    def of(self, machine: str) -> MachineTraffic:
        """The counters of a machine."""
        traffic = self.machines.get(machine)
        if traffic is None:
            if len(self.machines) >= MAX_MACHINES:
                machine = OTHERS
            traffic = self.machines.setdefault(machine, MachineTraffic())
        return traffic

    def message(self, machine: str, sent_bytes: int, received_bytes: int) -> None:
        """One message there and back."""
        traffic = self.of(machine)
        traffic.messages += 1
        traffic.sent_bytes += sent_bytes
        traffic.received_bytes += received_bytes

    def scattered(self, layer: int, machines: Sequence[str], tokens: Sequence[int]) -> None:
        """Experts of one scatter were served on ``machines``, each with so many tokens."""
        count: dict[str, int] = {}
        for machine, amount in zip(machines, tokens, strict=True):
            if machine:
                count[machine] = count.get(machine, 0) + 1
                traffic = self.of(machine)
                traffic.expert_calls += 1
                traffic.expert_tokens += amount
        if count:
            self.fullest[layer] += max(count.values())
            self.scatters[layer] += 1

    def place(self, machine: str) -> str:
        """``local`` on the ingress's own machine."""
        return "local" if self.machine and machine == self.machine else "remote"

    def families(self, pipeline: str) -> Iterator[Metric]:
        """Metric families with the counters of now."""
        where = ["pipeline", "machine", "place"]
        calls = CounterMetricFamily(names.MACHINE_CALLS, "Calls served by machine", labels=[*where, "kind"])
        messages = CounterMetricFamily(names.MACHINE_MESSAGES, "Messages by machine", labels=where)
        size = CounterMetricFamily(names.MACHINE_BYTES, "Bytes by machine", labels=[*where, "direction"])
        for machine, machine_traffic in self.machines.items():
            labels = [pipeline, machine, self.place(machine)]
            calls.add_metric([*labels, "expert"], machine_traffic.expert_calls)
            calls.add_metric([*labels, "segment"], machine_traffic.segment_calls)
            messages.add_metric(labels, machine_traffic.messages)
            size.add_metric([*labels, "sent"], machine_traffic.sent_bytes)
            size.add_metric([*labels, "received"], machine_traffic.received_bytes)
        yield from (calls, messages, size)
        by_layer = ["pipeline", "layer"]
        fullest = CounterMetricFamily(names.FULLEST_EXPERTS, "Activated experts, fullest machine", labels=by_layer)
        scatters = CounterMetricFamily(names.SCATTERS, "Scatters over known machines", labels=by_layer)
        for layer in range(self.layers):
            fullest.add_metric([pipeline, str(layer)], self.fullest[layer])
            scatters.add_metric([pipeline, str(layer)], self.scatters[layer])
        yield from (fullest, scatters)
        yield from self._link_families(pipeline)

    def _link_families(self, pipeline: str) -> Iterator[Metric]:
        label = ["pipeline", "machine"]
        seconds = GaugeMetricFamily(names.LINK_SECONDS, "Measured seconds of a line", labels=[*label, "of"])
        speed = GaugeMetricFamily(names.LINK_BYTES_PER_SECOND, "Measured bytes a second of a line", labels=label)
        for machine, link in list(self.links.items())[:MAX_MACHINES]:
            for of, value in (("hop", link.hop_s), ("message", link.message_s), ("spread", link.spread_s)):
                seconds.add_metric([pipeline, machine, of], value)
            speed.add_metric([pipeline, machine], link.bytes_per_s)
        yield from (seconds, speed)
