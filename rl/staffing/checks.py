"""What a window shows of the numbers that the rule plans with: whether calls take the planned seconds, and whether the
experts' tokens are those that requests brought."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from operator import eq

import numpy as np

from autoscaler.contract import Memory, NodeObservation, Observation, reached
from rl.agent.doubts import alone_s
from simulation.workloads.workload import Workload

Size = tuple[float, float, bool]
"""Cores and GPU share of a replica, and whether there are standbys."""
MOST = 4.0
"""Call times are corrected by so much at most, either way."""
SAFE, EDGE, TIGHT = 0.8, 0.9, 0.95
"""Parts of λ. After a window over the last a plan is to come to the first; after one within the first it may come to
the second; after others it may be no slower than what there is."""
QUICKER, SLOWER = 0.6, 1.5
"""Part of the seconds of what there is that one order takes at least, calls that wait being late whatever the sizes,
and at most."""
RELAXED, GIVEN = 1.015, 0.5
"""Factor by which a plan may be slower with each window since one over λ: half as slow again after 28. To that comes
the second part of what a window's P95 is below :data:`SAFE`, in λ: after two at half of it, half as slow again."""
UNANSWERED = math.nextafter(1.0, 2.0)
"""P95 over λ that a window counts as in which requests wait and none is answered, as one may have come at its end."""
KEPT_S, IDLE = 300.0, 0.5
"""Seconds for which sizes stay those for the busiest window, as HPA's stabilisation by default, and the part of its
tokens below which a window shows nothing of them: what waits costs its memory, and load that left may come back."""
LEAST_EXPERTS = 0.2
"""Experts are taken for this part of P95 at least."""
LEAST_SEEN = 0.8
"""Part of the tokens that requests brought below which the experts of most layers do not show all of them."""
FEWEST_REQUESTS = 40
"""Requests of a window from which that is judged: those under way at its ends are not the same."""


@dataclass(frozen=True)
class Correction:
    """What the plan is corrected by. Windows that keep λ are not remembered: sizes that are quicker than they have to
    be take the room of standbys, and each change of them makes requests wait."""

    times: float = 1.0
    """How many times their planned seconds calls take, as far as they were measured."""
    measured: bool = False
    most: float = math.inf
    """Mean seconds of the experts, by the queueing model with the latency model's call times, over λ: what windows
    over λ that were due to their sizes have left."""
    late: float | None = None
    """P95 over λ of the last window that had one."""
    due: bool = False
    """Whether that is due to the sizes that there are."""
    sizes: tuple[Size | None, ...] = ()
    """Those of the experts in the last window."""
    same: float = 0.0
    """Windows since most of them changed."""
    busy: tuple[Observation, ...] = ()
    """Windows of the last :data:`KEPT_S` that had more tokens than any later one; none of a decoder."""

    @staticmethod
    def of(memory: Memory) -> Correction:
        """What a policy remembered, nothing where that is another policy's."""
        return memory if isinstance(memory, Correction) else NONE

    def after(self, workload: Workload, observation: Observation) -> Correction:
        """With a window more: call times are its geometric mean with what was known, or it alone. A window over λ is
        due to its sizes where they were there for all of it, or where the one before kept λ with standbys; any other,
        such as the first with standbys, shows nothing of them for later."""
        if observation.stale:
            return self
        now = call_times(workload, observation)
        busy = self._busy_with(workload, observation)
        times = self.times if now is None else math.sqrt(self.times * now) if self.measured else now
        sizes = tuple(_size(observation.node(node.id)) for node in workload.experts)
        same = self.same + observation.news if _mostly(map(eq, sizes, self.sizes), sizes) else 0.0
        late = _late(workload, observation)
        if _is_idle(observation, busy) and (observation.in_flight or 0.0) <= (observation.requests or 0.0):
            return replace(self, late=None if self.late is None else EDGE, due=False, sizes=sizes, same=0.0, busy=busy)
        due = reached(same, 1.0) or (reached(observation.news, 1.0) and self._had_room)
        due = due and observation.latency_p95_s is not None
        room = 0.0 if late is None else max(SAFE - late, 0.0)
        most = self.most * (RELAXED + GIVEN * room) ** observation.news
        times = min(max(times, 1 / MOST), MOST)
        return Correction(
            times, self.measured or now is not None, most, self.late if late is None else late, due, sizes, same, busy
        )

    def _busy_with(self, workload: Workload, observation: Observation) -> tuple[Observation, ...]:
        tokens = observation.tokens_per_s
        if tokens is None or workload.topology.generates:
            return self.busy
        since_s = observation.end_s - KEPT_S
        return (*(one for one in self.busy if one.end_s > since_s and (one.tokens_per_s or 0.0) > tokens), observation)

    def planned_for(self, observation: Observation) -> Observation:
        """The window whose load sizes are planned for, with the configurations that there are now: ``observation``, or
        the busiest where it is idle next to that."""
        if not _is_idle(observation, self.busy):
            return observation
        now = {node.node: node.configuration for node in observation.nodes}
        nodes = (one._replace(configuration=now.get(one.node)) for one in self.busy[0].nodes)
        return replace(self.busy[0], nodes=tuple(nodes))

    @property
    def _had_room(self) -> bool:
        standbys = (size is not None and size[2] for size in self.sizes)
        return self.late is not None and self.late <= 1.0 and _mostly(standbys, self.sizes)

    def most_s(self, slo_s: float, present_s: float, outside_s: float) -> float:
        """The most mean seconds that a plan's experts may take where they take ``present_s`` now, by the model that
        :attr:`times` corrects, and requests ``outside_s`` outside of them."""
        most = self.times * self.with_sizes(slo_s, present_s, outside_s).most * slo_s
        if self.late is None:
            return most
        outside = outside_s / slo_s
        if self.late > TIGHT:
            most = min(most, _part(self.late, outside, SAFE) * present_s)
        slower = min(_part(self.late, outside, EDGE), SLOWER) if self.late <= SAFE else 1.0
        return min(max(most, QUICKER * present_s), slower * present_s)

    def with_sizes(self, slo_s: float, present_s: float, outside_s: float) -> Correction:
        """With what the last window, if it was over λ and that is due to its sizes, leaves of their ``present_s``."""
        if not self.due or self.late is None or self.late <= 1.0 or not math.isfinite(present_s):
            return self
        part = max(_part(self.late, outside_s / slo_s, SAFE), QUICKER)
        return replace(self, most=min(self.most, part * present_s / self.times / slo_s))


NONE = Correction()


def _is_idle(observation: Observation, busy: Sequence[Observation]) -> bool:
    tokens = observation.tokens_per_s
    return bool(busy) and tokens is not None and tokens < IDLE * (busy[0].tokens_per_s or 0.0)


def _part(late: float, outside: float, to: float) -> float:
    """Part of the experts' mean seconds with which P95 comes ``to`` this where it is ``late`` now: what of it is over
    the seconds ``outside`` of them grows in proportion. All in λ."""
    return 1.0 + (to - late) / max(late - outside, LEAST_EXPERTS * late, 1e-9)


def _late(workload: Workload, observation: Observation) -> float | None:
    """P95 over λ; None where no request came, and of a decoder, whose requests are texts and whose λ is a pass's."""
    if workload.topology.generates:
        return None
    if observation.latency_p95_s is None:
        return UNANSWERED if observation.in_flight else None
    return observation.latency_p95_s / workload.slo_s


def _size(node: NodeObservation | None) -> Size | None:
    now = None if node is None else node.configuration
    return None if now is None else (now.cpu_cores, now.gpu_share, now.burst is not None)


def _mostly(those: Iterable[object], among: Sized) -> bool:
    return 2 * sum(map(bool, those)) > len(among)


def call_times(workload: Workload, observation: Observation) -> float | None:
    """Seconds of calls that had their replica mostly for themselves over those that ``workload`` has for as many tokens
    on the same resource, in the median of the experts; None where there are no such calls."""
    rows = [row for node in workload.experts if (row := _measured(observation.node(node.id), observation.window_s))]
    if not rows:
        return None
    ratios = []
    costs = {node: workload.costs[node] for node, *_ in rows}
    for cost in set(costs.values()):
        same = np.array([row[1:] for row in rows if costs[row[0]] == cost])
        planned_s = workload.latency.seconds(cost, same[:, 1], same[:, 2], same[:, 3])
        ratios += (same[:, 0] / planned_s).tolist()
    return float(np.median(ratios))


def tokens_seen(workload: Workload, observation: Observation) -> float | None:
    """Tokens of a layer's experts over those that the window's requests brought to each layer, in the median of the
    layers; None where one is not known, of few requests, and of a decoder, whose requests bring a token a pass."""
    brought = (observation.tokens_per_s or 0.0) * (workload.top_k + workload.shared)
    layers = [layer.tokens_per_s for layer in observation.layers]
    few = (observation.requests or 0) < FEWEST_REQUESTS
    if workload.topology.generates or few or not brought or None in layers:
        return None
    return float(np.median([tokens / brought for tokens in layers if tokens is not None]))


def _measured(node: NodeObservation | None, window_s: float) -> tuple[str, float, float, float, float] | None:
    """(id, seconds of a call, tokens of one, cores, GPU share)."""
    if node is None or node.configuration is None or not node.requests_per_s or not node.tokens_per_s:
        return None
    seconds, now = alone_s(node, window_s), node.configuration
    if seconds is None:
        return None
    return node.node, seconds, node.tokens_per_s / node.requests_per_s, now.cpu_cores, now.gpu_share


def without_calls(workload: Workload, observation: Observation) -> bool:
    """Whether most experts that got tokens got no call, which cannot be."""
    nodes = [node for one in workload.experts if (node := observation.node(one.id)) is not None and node.tokens_per_s]
    return 2 * sum(node.requests_per_s == 0 for node in nodes) > len(nodes)
