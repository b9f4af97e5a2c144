"""What a token of the pipeline costs each function: seconds of one replica, from the CPU time that it used.

Under a CPU quota the time that a call takes hardly depends on its work: a lone one passes within the quota's slice, one
of a steady stream waits for the next, and several that wait are one product for the price of one. CPU time does not
depend on the first two, and it is what HPA goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.contract import Configuration, Observation

FORGET = 0.9
"""Weight of windows after each later one."""
STEP = 1.25
"""A cost is stated again once it is so many times more or less than what was stated: one that hardly changed is no
change of a configuration."""


@dataclass(frozen=True)
class Work:
    """What is known of each function after some windows."""

    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(core-seconds used, tokens of the pipeline), the older the lighter; a core is a configured one."""
    token_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a replica that a token costs, as stated. A worked example: two replicas at 0.3 of their CPU limit
    during 2 s in which 60 tokens were answered: 1.2 replica-seconds, 0.02 s a token."""

    def busy(self, function: str, observation: Observation) -> float:
        """Replicas of ``function`` that the window's tokens keep busy, by the stated cost; 0 where none is."""
        return (observation.tokens_per_s or 0.0) * self.token_s.get(function, 0.0)

    def is_known(self, function: str, observation: Observation) -> bool:
        """Whether :meth:`busy` states the window's work: not where there are tokens and no CPU time of the function
        ever was known, nor where there are none, or they are not known, and requests failed or are under way: tokens
        count with their answers alone."""
        if observation.tokens_per_s:
            return function in self.token_s or function in self.sums
        return not observation.requests and not observation.in_flight

    def after(self, observation: Observation) -> Work:
        """With a window more; functions whose CPU time is not known in it keep their sums, as all do in one in which
        nothing was answered."""
        tokens = (observation.tokens_per_s or 0.0) * observation.window_s
        if observation.stale or not tokens:
            return self
        sums, stated = dict(self.sums), dict(self.token_s)
        for node in observation.nodes:
            now = node.configuration
            if node.cpu_utilisation is None or not node.measured_replicas or now is None or not now.cpu_cores:
                continue
            used_s = node.cpu_utilisation * node.measured_replicas * now.cpu_cores * observation.window_s
            before_s, before = sums.get(node.function, (0.0, 0.0))
            sums[node.function] = FORGET * before_s + used_s, FORGET * before + tokens
            cost_s = sums[node.function][0] / sums[node.function][1] / now.cpu_cores
            stated_s = stated.get(node.function, 0.0)
            if cost_s and not stated_s / STEP < cost_s < stated_s * STEP:
                stated[node.function] = float(f"{cost_s:.3g}")
        return Work(sums, stated)


def stating(configuration: Configuration, token_s: float | None) -> Configuration:
    """With what a token costs stated in its rule."""
    burst = configuration.burst
    return configuration if burst is None else replace(configuration, burst=replace(burst, token_s=token_s))


def stated_costs(observation: Observation) -> dict[str, float]:
    """What orders of before have stated at the functions: all that a controller knows after its start."""
    present = ((node.function, node.configuration) for node in observation.nodes)
    bursts = {function: one.burst for function, one in present if one is not None and one.burst is not None}
    return {function: burst.token_s for function, burst in bursts.items() if burst.token_s is not None}
