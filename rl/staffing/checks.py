"""What a window shows of the numbers that the rule plans with: whether calls take the planned seconds, and whether the
experts' tokens are those that requests brought."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Memory, NodeObservation, Observation, reached
from rl.agent.doubts import alone_s
from simulation.workloads.workload import Workload

MOST = 4.0
"""Call times are corrected by so much at most, either way."""
SAFE, RECENT = 0.8, 28
"""A plan may be so slow that P95 comes to this part of λ, by the worst of so many windows."""
QUICKER, LEAST_EXPERTS = 0.6, 0.2
"""After a window over λ a plan takes this part of what there is at least; experts are taken for this part of P95 at
least."""
LEAST_SEEN = 0.8
"""Part of the tokens that requests brought below which the experts of most layers do not show all of them."""
FEWEST_REQUESTS = 40
"""Requests of a window from which that is judged: those under way at its ends are not the same."""


@dataclass(frozen=True)
class Correction:
    """What the plan is corrected by. ``times``: how many times their planned seconds calls take, as far as they were
    measured; ``late``: P95 over λ of the last windows, the newest at the end."""

    times: float = 1.0
    measured: bool = False
    late: tuple[float, ...] = ()
    shown: float = 0.0
    """Windows since the last of these became one of its own; one that overlaps it takes its place until then."""

    @staticmethod
    def of(memory: Memory) -> Correction:
        """What a policy remembered, nothing where that is another policy's."""
        return memory if isinstance(memory, Correction) else NONE

    def after(self, workload: Workload, observation: Observation) -> Correction:
        """With a window more: call times are its geometric mean with what was known, or it alone."""
        if observation.stale:
            return self
        now = call_times(workload, observation)
        times = self.times if now is None else math.sqrt(self.times * now) if self.measured else now
        p95_s, shown, late = observation.latency_p95_s, self.shown + observation.news, self.late
        if p95_s is not None:
            whole = reached(shown, 1.0) or not late
            late = (*(late if whole else late[:-1]), p95_s / workload.slo_s)[-RECENT:]
            shown = 0.0 if whole else shown
        return Correction(min(max(times, 1 / MOST), MOST), self.measured or now is not None, late, shown)

    def most_s(self, slo_s: float, present_s: float, outside_s: float) -> float:
        """The most mean seconds that experts may take, which take ``present_s`` now, by the same model: of P95 what is
        over the seconds ``outside_s`` of them grows in proportion. No fewer than now where the last window kept λ."""
        if not self.late:
            return math.inf
        missed = self.late[-1] > 1.0
        late = self.late[-1] if missed else max(self.late)
        experts = max(late - outside_s / slo_s, LEAST_EXPERTS * late)
        times = 1.0 + (SAFE - late) / experts
        return present_s * max(times, QUICKER if missed else 1.0)


NONE = Correction()


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
