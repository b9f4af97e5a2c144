"""HPA over fixed vertical configurations: the paper's OpenFaaS baseline and the tuned HPA.

Memory, CPU or GPU share and concurrency of a function are given once and desired in every window, replicas are HPA's.
Where they come from is the only difference: drawn at random from the valid space ("We randomly select other
configurations from the valid space", section 5.1), or the best that a search found.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import replace

from autoscaler.contract import Configuration, ConfigurationSpace, Memory, MemoryNeed, Observation, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policy.hpa import HpaPolicy, HpaSettings


class VerticalHpaPolicy:
    """HPA for every managed function; those in ``verticals`` have the other axes given there (its replicas unused)."""

    def __init__(self, name: str, verticals: Mapping[str, Configuration], settings: HpaSettings | None = None) -> None:
        self.name = name
        self.verticals = dict(verticals)
        self._hpa = HpaPolicy(settings)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        proposal = self._hpa.propose(observation, now_s, memory)
        desired = dict(proposal.desired)
        for function, configuration in proposal.desired.items():
            vertical = self.verticals.get(function)
            if vertical is not None and configuration.replicas > 0:
                desired[function] = vertical.with_replicas(configuration.replicas)
        return replace(proposal, desired=desired)


def draw(
    needs: Mapping[str, MemoryNeed], space: ConfigurationSpace, seed: int, *, uniform: bool = False
) -> dict[str, Configuration]:
    """Function → a configuration drawn uniformly from those that satisfy Eq. (2) at every number of replicas.

    Replicas are the HPA's, so a draw must hold already with the fewest. Each function's draw depends on seed and name
    alone, not on the other functions. ``uniform``: one draw for all, which must hold the largest of the needs. Raises
    SettingsError where no memory of the space is enough.
    """
    if uniform and needs:
        largest = max(needs.values(), key=lambda need: need.required_mb(space.replicas_min))
        drawn = _draw("", largest, space, seed)
        return dict.fromkeys(needs, drawn)
    return {function: _draw(function, need, space, seed) for function, need in needs.items()}


def _draw(function: str, need: MemoryNeed, space: ConfigurationSpace, seed: int) -> Configuration:
    least_mb = space.least_memory_mb(need, space.replicas_min)
    if least_mb is None:
        raise SettingsError(
            f"openfaas: {function or 'the largest function'} needs {need.required_mb(space.replicas_min):.0f} MiB; "
            f"the configuration space ends at {space.memory_max_mb}"
        )
    rng = random.Random(hashlib.sha256(f"{seed}/{function}".encode()).digest())
    cores, share = rng.choice(space.resources)
    return Configuration(
        rng.choice([size for size in space.memory_sizes_mb if size >= least_mb]),
        cores,
        share,
        space.replicas_min,
        rng.choice(space.concurrencies),
    )
