"""What is decided of every expert: eight numbers within -1 and 1, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autoscaler.capacity import replica_needs
from autoscaler.contract import Burst, Configuration, Observation, Resources
from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings, Plan
from evaluation.bound.loads import load_of
from platform_words.bursts import MAX_STANDBYS
from rl.agent.contract import Floats32
from rl.staffing.checks import NONE, Correction
from rl.staffing.margin import RULE
from simulation.arrays import Floats, Ints
from simulation.workloads.workload import Workload

Actions = NDArray[np.float32]


@dataclass(frozen=True)
class Axis:
    """One number: ``low`` at -1, ``high`` at 1, between them evenly or, where ``log``, by equal factors."""

    name: str
    low: float
    high: float
    log: bool = False

    def value(self, action: Floats | Actions) -> Floats:
        """``action`` [..] within -1 and 1 → values [..]."""
        part = (np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0) + 1) / 2
        if self.log:
            return np.asarray(self.low * (self.high / self.low) ** part)
        return np.asarray(self.low + (self.high - self.low) * part)

    def action(self, value: float) -> float:
        """The other way round, within -1 and 1."""
        if self.log:
            part = np.log(value / self.low) / np.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return float(np.clip(2 * part - 1, -1.0, 1.0))


AXES = (
    Axis("load", 0.1, 3.0, log=True),
    Axis("standbys", 0.0, 12.0),
    Axis("headroom", 0.4, 1.6),
    Axis("spare", 0.0, 1.6),
    Axis("hold_s", 0.05, 8.0, log=True),
    Axis("look_back_s", 0.1, 1.0, log=True),
    Axis("budget", 0.15, 1.0, log=True),
    Axis("sleep_s", 0.5, 60.0, log=True),
)
"""``load``: times its calls in the last window that are planned for; ``standbys``, ``headroom``, ``spare``, ``hold_s``
and ``look_back_s`` of :class:`functions.dispatch.activation.Burst`; ``budget``: part of what λ leaves the experts that
their mean seconds may take, of which the mean over all experts counts; ``sleep_s``: seconds without a request after
which replicas wait, too, below :data:`ALWAYS_S`."""
ALWAYS_S = 15.0
"""``sleep_s`` from which on replicas always run."""
LEAST = 0.5
"""Part of λ that experts are planned for however long segments take: costlier experts make no queue there shorter,
and on a machine that is short of processors they make it longer."""
CALLS = 2
"""Calls at once of a replica on cores. While one of two is on the network the other is computed, so a replica serves
more of them. With one at a time, load that multiplied within a window took P95 to 3 to 13 λ."""
NAMES = tuple(axis.name for axis in AXES)


def action_of(values: Mapping[str, float]) -> Actions:
    """[8] float32 of ``values`` by :data:`NAMES`."""
    return np.array([axis.action(values[axis.name]) for axis in AXES], dtype=np.float32)


def room_of(room: Floats32 | None) -> Resources | None:
    """[3] of a state (:attr:`rl.agent.contract.State.room`) as what the cluster has for experts."""
    return None if room is None else Resources(*map(float, room))


@dataclass(frozen=True)
class Depth:
    """Replicas of functions on cores that their work by CPU time asks for; [functions], of experts in the order of
    ``workload.experts``."""

    running: Ints
    """That always run, at least."""
    together: Ints
    """That run and wait together, at least, of functions that are to have standbys."""

    def standbys(self, wanted: Ints, running: Ints) -> Ints:
        """``wanted`` ones next to so many that run (both [functions]), and those that :attr:`together` lacks."""
        standbys: Ints = np.minimum(np.maximum(wanted, self.together - running), MAX_STANDBYS)
        return standbys


class Staffing:
    """From actions of all experts to the configurations that are asked for, within the cluster. Not ``planned``:
    replicas keep the size that they are deployed with, and nothing goes by the workload's call times."""

    def __init__(self, workload: Workload, planned: bool = True) -> None:
        self._planner = LastWindowPolicy(workload, LastWindowSettings()) if planned else None
        self._experts = experts = workload.experts
        self._place = {node.id: place for place, node in enumerate(experts)}
        self._functions = [node.function for node in experts]
        self._slo_s = workload.slo_s
        self._calls = min(max(CALLS, workload.space.concurrency_min), workload.space.concurrency_max)
        self._batches = workload.topology.generates
        """A decoder's workers compute calls of several instances as one product: they need more than one at a time."""
        self._measured = workload.measured
        """Call times are of functions that run, whose workers compute calls that wait as one product, too."""

    def plan(
        self,
        observation: Observation,
        actions: Actions,
        priority: Floats,
        room: Resources | None,
        depth: Depth | None = None,
        correction: Correction = NONE,
    ) -> Plan:
        """Configurations with their standbys; of no function where the last window's load is not known.

        ``actions`` [experts, 8] and ``priority`` [experts] in the order of ``workload.experts``; ``room``: what the
        cluster has for experts, None: anything. Where it has not enough for all standbys, they are granted one after
        the other, the n-th of an expert at n over its ``priority``; before them, in the same way, the replicas that
        ``depth`` asks for beyond the planned ones. ``correction``: of what is planned with.
        """
        values = {axis.name: axis.value(actions[:, place]) for place, axis in enumerate(AXES)}
        load = values["load"]
        budget = float(values["budget"].mean())
        if self._planner is None:
            plan = self._of_sizes_there(observation)
        else:
            plan = self._planner.plan(
                observation, budget, lambda node: float(load[self._place[node]]), room, LEAST, correction.times,
                partial(correction.most_s, self._slo_s),
            )  # fmt: skip
        if not plan.desired:
            return plan
        planned = [plan.desired[function] for function in self._functions]
        if self._measured and not self._batches:
            planned = _as_deployed(planned, observation, self._functions)
        elif not self._batches:
            planned = [two_at_a_time(configuration, self._calls) for configuration in planned]
        wanted = np.rint(values["standbys"]).astype(int)
        if depth is not None:
            planned, wanted = _deepened(planned, wanted, depth, priority, room)
        standbys = granted(wanted, planned, priority, room)
        desired = {
            function: replace(configuration, burst=_burst(int(standbys[place]), values, place))
            for place, (function, configuration) in enumerate(zip(self._functions, planned, strict=True))
        }
        return replace(plan, desired=desired)

    def _of_sizes_there(self, observation: Observation) -> Plan:
        """A replica of each expert as it is, those with a GPU share as many as there are; none where an expert's load
        is not known."""
        desired = {}
        for node in self._experts:
            one = observation.node(node.id)
            if one is None or one.configuration is None or load_of(one) is None:
                return Plan(tuple(self._functions), {}, f"no data: the load of {node.id} is not known")
            now = replace(one.configuration, burst=None)
            desired[node.function] = now if now.gpu_share else now.with_replicas(1)
        return Plan(tuple(self._functions), desired, "replicas of the size that is deployed")


def two_at_a_time(configuration: Configuration, calls: int = CALLS) -> Configuration:
    """On cores a replica takes so many calls: the others wait for whichever replica is free first, a standby that opens
    meanwhile included, not behind the calls that share a replica. With a GPU share as planned."""
    return configuration if configuration.gpu_share else replace(configuration, concurrency=calls)


def _as_deployed(planned: list[Configuration], observation: Observation, functions: list[str]) -> list[Configuration]:
    """With the concurrency that functions have: what calls of one product save grows with the load, and shows in no
    call that was measured alone."""
    present = {node.function: node.configuration for node in observation.nodes}
    return [
        replace(one, concurrency=now.concurrency) if (now := present.get(function)) is not None else one
        for one, function in zip(planned, functions, strict=True)
    ]


def _burst(standbys: int, values: Mapping[str, Floats], place: int) -> Burst | None:
    each = burst_of(standbys, {name: float(values[name][place]) for name in (*RULE, "sleep_s")})
    return each if standbys or each.sleep_s is not None else None


def burst_of(standbys: int, values: Mapping[str, float]) -> Burst:
    """The rule by which ``standbys`` are activated, from numbers by :data:`NAMES`, to three places."""
    numbers = {name: round(values[name], 3) for name in RULE}
    sleep_s = round(values["sleep_s"], 3)
    return Burst(standbys, **numbers, sleep_s=sleep_s if sleep_s < ALWAYS_S else None)


def _deepened(
    planned: list[Configuration],
    wanted: Ints,
    depth: Depth,
    priority: Floats,
    room: Resources | None,
) -> tuple[list[Configuration], Ints]:
    """``planned`` with the replicas of ``depth`` that ``room`` has place for, and the standbys [experts] then wanted:
    none of experts that want none."""
    running = np.array([one.replicas for one in planned])
    on_cores = np.array([not one.gpu_share for one in planned])
    more = np.where(on_cores, np.maximum(0, depth.running - running), 0)
    running = running + granted(more, planned, priority, room)
    planned = [replace(one, replicas=int(count)) for one, count in zip(planned, running, strict=True)]
    return planned, np.where(on_cores & (wanted > 0), depth.standbys(wanted, running), wanted)


def granted(
    wanted: NDArray[np.int64], configurations: list[Configuration], priority: Floats, room: Resources | None
) -> NDArray[np.int64]:
    """[experts] standbys that ``room`` has place for next to the replicas of ``configurations``; all with no walls."""
    if room is None:
        return wanted
    needs = [replica_needs(configuration) for configuration in configurations]
    left = np.array(room, dtype=np.float64)
    for configuration, need in zip(configurations, needs, strict=True):
        left -= configuration.replicas * np.array(need)
    order = sorted(
        (number / max(float(priority[place]), 1e-9), place)
        for place, count in enumerate(wanted)
        for number in range(1, int(count) + 1)
    )
    taken = np.zeros_like(wanted)
    for _, place in order:
        rest = left - np.array(needs[place])
        if (rest >= -1e-9).all():
            left = rest
            taken[place] += 1
    return taken
