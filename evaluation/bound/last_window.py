"""The policy *last-window optimum*: the separable optimum for the previous window's load, applied to the next one.

What a learnt policy has to beat: it knows the latency model and searches the whole of Φ, but nothing of what comes. In
the controller ``--policy evaluation.bound.last_window:make``, in a simulation :class:`LastWindowPolicy` with its
workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from autoscaler.checked import Checked, FromOne, NotNegative, Positive, PositiveShare
from autoscaler.contract import Configuration, Memory, NodeObservation, Observation, Policy, Proposal, Resources
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.prices import Meter
from evaluation.bound.frontier import ExpertTable
from evaluation.bound.loads import call_s, expert_table, load_of
from evaluation.bound.physics import Physics
from evaluation.bound.queueing import serve
from evaluation.bound.walls import Problem
from simulation.profiles.model.bundled import planned_with
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.pipeline import clustered_workload, measured_workload
from simulation.workloads.paper import LIFECYCLE, PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import TokenLengths, Workload

MEAN_TOKENS, CV_TOKENS, MOST_TOKENS = 64, 0.6, 512
NEARLY = 1.25
"""Times the least seconds that a plan is corrected to: the last of them cost the room of everything else."""


@dataclass(frozen=True)
class LastWindowSettings(Checked):
    """Defaults are ours; ``headroom`` is part of the tuning sweep."""

    title = "last-window"
    meter: Meter = "provisioned"
    """Cost to keep low: ``provisioned`` or ``busy``."""
    headroom: PositiveShare = 0.4
    """Part of what λ leaves the experts that their mean seconds may take; the rest is for the tail."""
    load_factor: Annotated[float, Field(gt=0, lt=1e3)] = 1.0
    """How many times the last window's calls are planned for."""


@dataclass(frozen=True)
class ModelSettings(Checked):
    """Which latency model a policy plans with."""

    workload: str = ""
    """One of the paper's workloads; by default the pipeline's name, where it is one."""
    profile: str = ""
    """Or a measured profile of the pipeline (parquet); where neither is named, this tree's for the pipeline, of this
    machine or with a warning of another."""
    cpu_scale: NotNegative = 0.0
    """Real cores per configured core where it plans with a profile; 0: where that was measured."""
    other_machine: bool = False
    """The profile's machine is meant: it is not refused where this one is another."""
    cluster: bool = False
    """With a profile: Φ's GPU shares are there too, as :mod:`simulation.profiles.model.cluster` predicts their seconds,
    and a replica's cores are its own."""
    mean_tokens: FromOne = MEAN_TOKENS
    """Tokens of a mean request."""
    hop_factor: Positive = 1.0
    """Factor of the modelled cost of a hop, for one of the paper's workloads."""


@dataclass(frozen=True)
class MakingSettings(ModelSettings, LastWindowSettings):
    """The policy's file: its settings, and which latency model it plans with."""

    title = "last-window"


@dataclass(frozen=True)
class Plan:
    """Configurations of all experts' functions, or of none."""

    functions: tuple[str, ...]
    desired: Mapping[str, Configuration]
    reason: str
    present_s: float = np.inf
    """Mean seconds of the experts in what there was, by the queueing model; infinite where that is not known."""
    outside_s: float = 0.0
    """Mean seconds outside of them."""
    compare: Callable[[], Mapping[str, tuple[Configuration, float]]] = dict
    """What makes :attr:`second`."""

    @cached_property
    def second(self) -> Mapping[str, tuple[Configuration, float]]:
        """Function → the cheapest other configuration that is at least as fast, and what it would cost more an hour; of
        functions for which there is none, nothing. Made where it is asked for: simulations never do."""
        return self.compare()


class LastWindowPolicy:
    """Configures all experts at once, or none where an expert's load is not known; other functions it leaves alone."""

    name = "last-window"

    def __init__(self, workload: Workload, settings: LastWindowSettings | None = None) -> None:
        self.settings = settings or LastWindowSettings()
        self._physics = Physics(workload, workload.tokens.most)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        factor, room = self.settings.load_factor, self._physics.workload.expert_room
        plan = self.plan(observation, self.settings.headroom, lambda node: factor, room)
        return Proposal(plan.desired, dict.fromkeys(plan.functions, plan.reason), memory)

    def plan(
        self,
        observation: Observation,
        headroom: float,
        load_factor: Callable[[str], float],
        room: Resources | None,
        least: float = 0.0,
        times: float = 1.0,
        most_s: Callable[[float, float], float] | None = None,
    ) -> Plan:
        """The optimum for ``load_factor`` (of an expert's node id) times the calls of the observed window, within
        ``headroom`` of what λ leaves the experts and, where there are walls, within ``room``. At least the part
        ``least`` of λ is left to the experts, however long segments take. ``times``: how many times as long as by the
        latency model their calls take. ``most_s``: from mean seconds of the experts in what there is now, by the
        queueing model, and seconds outside of them to the most that a plan may take, whatever the budget."""
        physics = self._physics
        functions = tuple(node.function for layer in physics.layers for node in layer)
        tables: list[list[ExpertTable]] = []
        for layer, nodes in zip(physics.experts, physics.layers, strict=True):
            tables.append([])
            for rows, node in zip(layer, nodes, strict=True):
                node_observation = observation.node(node.id)
                load = None if node_observation is None else load_of(node_observation)
                if node_observation is None or load is None:
                    reason = f"no data: the load of {node.id} is not known, and all experts are planned together"
                    return Plan(functions, {}, reason)
                memory = physics.least_memory(node, node_observation.peak_tokens or 0.0)
                calls, alone_s = load[0] * load_factor(node.id), times * call_s(rows, load[1])
                window_s, meter = observation.window_s, self.settings.meter
                tables[-1].append(expert_table(physics, rows, calls, alone_s, memory, window_s, meter))
        slo_s, outside_s = physics.workload.slo_s, self._outside_s(observation)
        budget_s = headroom * max(least * slo_s, slo_s - outside_s)
        present_s = np.inf if most_s is None else self._present_s(tables, observation)
        problem = Problem(tables, physics.space_arrays, room)
        if most_s is not None and np.isfinite(present_s):
            least_s = NEARLY * problem.enclose(0.0, 0).fastest_s
            budget_s = min(budget_s, max(most_s(present_s, outside_s), min(least_s, present_s)))
        plan = self._planned(problem, budget_s, functions, observation.window_s)
        return replace(plan, present_s=present_s, outside_s=outside_s)

    def _planned(self, problem: Problem, budget_s: float, functions: tuple[str, ...], window_s: float) -> Plan:
        """Configurations of the optimum; where the budget cannot be met, of the fastest choice; where nothing serves,
        none."""
        enclosure = problem.enclose(budget_s)
        reason = f"optimum of the last window: {1000 * budget_s:.1f} ms for the experts"
        if not enclosure.feasible:
            enclosure = problem.quickest()
            reason = f"{1000 * budget_s:.1f} ms for the experts cannot be met: the fastest choice"
        if not enclosure.feasible:
            return Plan(functions, {}, "no configuration serves the last window's load")
        numbers = np.concatenate(enclosure.numbers) if enclosure.numbers else np.zeros(0, np.int64)
        space = self._physics.workload.space
        desired = {function: space[int(number)] for function, number in zip(functions, numbers, strict=True)}

        def compare() -> dict[str, tuple[Configuration, float]]:
            chosen = zip(functions, numbers, problem.frontiers, strict=True)
            others = {function: frontier.second(int(number)) for function, number, frontier in chosen}
            return {function: (space[one[0]], 3600 * one[1] / window_s) for function, one in others.items() if one}

        return Plan(functions, desired, reason, compare=compare)

    def _present_s(self, tables: Sequence[Sequence[ExpertTable]], observation: Observation) -> float:
        """Mean seconds of the experts in what there is now, the slowest of each layer; infinite where that is not
        known."""
        return sum(
            max(
                (self._expert_s(one, observation.node(node.id)) for one, node in zip(layer, nodes, strict=True)),
                default=0.0,
            )
            for layer, nodes in zip(tables, self._physics.layers, strict=True)
        )

    def _expert_s(self, table: ExpertTable, observation: NodeObservation | None) -> float:
        """Mean seconds of an expert in the sizes that it has now, with as many replicas as serve the load at least;
        infinite where that is not known."""
        now = None if observation is None else observation.configuration
        if now is None:
            return np.inf
        arrays = self._physics.space_arrays
        row = np.argmin(np.abs(arrays.cpu_cores - now.cpu_cores) + np.abs(arrays.gpu_share - now.gpu_share))
        seconds = table.latency_s[row, np.searchsorted(arrays.replicas, now.replicas) :].min(axis=1)
        serving = seconds[np.isfinite(seconds)]
        return float(serving[0]) if serving.size else np.inf

    def _outside_s(self, observation: Observation) -> float:
        """Mean seconds outside of experts: measured at the segments, by the queueing model where they were not."""
        physics, total_s = self._physics, self._physics.constant_s
        for node, rows in zip(physics.workload.segments, physics.segments, strict=True):
            node_observation = observation.node(node.id)
            if node_observation is not None and node_observation.latency_mean_s is not None:
                total_s += node_observation.latency_mean_s
                continue
            fixed = physics.workload.segment_configuration
            calls, tokens = (None if node_observation is None else load_of(node_observation)) or (
                0.0,
                physics.workload.tokens.mean,
            )
            one = np.array([fixed.replicas]), np.array([fixed.concurrency])
            seconds = float(serve(calls, call_s(rows, tokens), rows.speedup, *one).latency_s[0, 0, 0])
            total_s += seconds if np.isfinite(seconds) else 0.0
        return total_s


def make(making: Making) -> Policy:
    """For ``--policy evaluation.bound.last_window:make``; settings in ``--policy-settings FILE``.

    Raises SettingsError.
    """
    making_settings = making.settings_as(MakingSettings)
    return LastWindowPolicy(workload_of(making, making_settings), making_settings)


def workload_of(making: Making, making_settings: ModelSettings) -> Workload:
    """What is planned with: seconds of calls by the settings, Φ, prices and λ of the controller. Raises
    SettingsError."""
    workload = _workload(making, making_settings)
    slo_s = pass_slo_s(making)
    if slo_s is not None:
        workload = replace(workload, slo_s=slo_s)
    space = making.limits.space
    if workload.measured and not making_settings.cluster:
        space = replace(space, gpu_shares=())
    topology = replace(workload.topology, generates=making.topology.generates)
    return replace(workload, topology=topology, space=space, prices=making.prices, alpha=making.limits.alpha)


def pass_slo_s(making: Making) -> float | None:
    """λ of one pass: of a decoder, each of whose passes writes a token of every text, the target of TPOT where there
    is one; of others that of requests."""
    settings = making.settings
    return settings.tpot_s if making.topology.generates and settings.tpot_s is not None else settings.slo_s


def _workload(making: Making, making_settings: ModelSettings) -> Workload:
    if making_settings.profile:
        try:
            return _measured(making, making_settings)
        except ProfileError as error:
            raise SettingsError(f"last-window: {error}") from error
    name = making_settings.workload or making.topology.pipeline
    if name in PAPER_WORKLOADS:
        return paper_workload(name, mean_tokens=making_settings.mean_tokens, hop_factor=making_settings.hop_factor)
    if making_settings.workload:
        raise SettingsError(f"last-window: workload is {name!r}, not one of {', '.join(PAPER_WORKLOADS)}")
    try:
        return _measured(making, making_settings)
    except ProfileMismatchError as error:
        raise SettingsError(f"last-window: there is no latency model of {name!r}; name a profile of it") from error


def _measured(making: Making, making_settings: ModelSettings) -> Workload:
    """The pipeline on the machine of a profile, or with ``cluster`` on one with GPU shares."""
    slo_s = pass_slo_s(making)
    if slo_s is None:
        name = making.settings.policy
        raise SettingsError(f"slo_s is None; {name} plans for a latency target (--slo-ms, of a decoder --tpot-ms)")
    profile = planned_with(
        making_settings.profile, making.settings.manifest_dir, making.topology,
        making_settings.other_machine or making_settings.cluster, making.settings.policy,
    )  # fmt: skip
    tokens = TokenLengths.lognormal(making_settings.mean_tokens, CV_TOKENS, MOST_TOKENS)
    scale, folder = making_settings.cpu_scale or None, making.settings.manifest_dir
    if making_settings.cluster:
        prices = making.prices
        return clustered_workload(
            folder, profile, tokens, slo_s=slo_s, changes=LIFECYCLE, prices=prices, cpu_scale=scale
        )
    return measured_workload(folder, profile, tokens, slo_s=slo_s, cpu_scale=scale)
