"""FaaSConf in the controller and in evaluations: ``--policy rl.faasconf.policy:make``, or ``faasconf`` for short.

All experts are decided at once, so where one expert's numbers are missing all are held. Exploration belongs to
training: here the actor's outputs are taken as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from autoscaler.checked import Checked
from autoscaler.contract import Configuration, Memory, MemoryNeed, NodeInfo, Observation, Policy, Proposal, Topology
from autoscaler.decision.limits import LimitSettings, memory_need
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from evaluation.comparison.learnt_files import learnt_file
from rl.faasconf.actions import configuration
from rl.faasconf.agent import Agent, load
from rl.faasconf.features import states
from simulation.arrays import Singles


def agents(topology: Topology) -> tuple[NodeInfo, ...]:
    """The experts in order of layer and number: agent i everywhere in this package."""
    return tuple(node for layer in range(topology.layers) for node in topology.experts(layer))


def adjacency(topology: Topology) -> Tensor:
    """[agents, agents] float32, symmetric: 1 where the pipeline's DAG leads from one to the other through nodes that
    are no agents, as each expert's own neighbours are segments; 0 on the diagonal.
    """
    place = {node.id: number for number, node in enumerate(agents(topology))}
    following: defaultdict[str, list[str]] = defaultdict(list)
    for one, other in topology.edges:
        following[one].append(other)
    matrix = torch.zeros(len(place), len(place))
    for node, number in place.items():
        waiting, visited = list(following[node]), set[str]()
        while waiting:
            at = waiting.pop()
            if at in visited:
                continue
            visited.add(at)
            if at in place:
                matrix[number, place[at]] = matrix[place[at], number] = 1.0
            else:
                waiting += following[at]
    return matrix


WEIGHTS = Path(__file__).with_name("weights")
"""``WORKLOAD.safetensors``, trained as ``docs/policies.md`` states."""


@dataclass(frozen=True)
class MakingSettings(Checked):
    """The settings file."""

    title = "faasconf"
    weights: str = ""
    """File of a trained agent; by default the packaged one of the pipeline's name or family."""


class Pipeline:
    """The agents of one pipeline: what they see, and what their outputs mean. Raises SettingsError."""

    def __init__(self, topology: Topology, limits: LimitSettings, slo_s: float) -> None:
        shared = [name for name, nodes in topology.functions().items() if len(nodes) > 1]
        if shared:
            raise SettingsError(f"faasconf: function {shared[0]} serves several nodes; it needs one expert a function")
        self.agents = agents(topology)
        self.adjacency = adjacency(topology)
        self.space = limits.space
        self._limits = limits
        self._slo_s = slo_s
        self._layers = topology.layers

    def states(self, observation: Observation) -> Singles | None:
        """[agents, features] float32; None where an expert's numbers are missing."""
        if any(need is None for need in self.needs(observation)):
            return None
        return states(observation, self.agents, self.space, self._slo_s, self._layers)

    def needs(self, observation: Observation) -> list[MemoryNeed | None]:
        """[agents] Eq. (2)'s numbers; None where the peak of tokens is not known."""
        return [memory_need([node], [observation.node(node.id)], self._limits) for node in self.agents]

    def configurations(self, outputs: Singles, observation: Observation) -> dict[str, Configuration]:
        """Function → configuration for ``outputs`` [agents, 5]; those whose memory need is not known are left out."""
        return {
            node.function: configuration(row, self.space, need)
            for node, row, need in zip(self.agents, outputs, self.needs(observation), strict=True)
            if need is not None
        }

    def held(self, memory: Memory = None) -> Proposal:
        """Nothing is proposed where not all is known."""
        reason = "no data: an expert's numbers are not known, and all are decided together"
        return Proposal({}, {node.function: reason for node in self.agents}, memory)

    def desired(self, chosen: Mapping[str, Configuration], why: str, memory: Memory = None) -> Proposal:
        return Proposal(chosen, dict.fromkeys(chosen, why), memory)


class FaasconfPolicy:
    """Desired configurations of the trained actor."""

    name = "faasconf"

    def __init__(self, agent: Agent, pipeline: Pipeline) -> None:
        self._agent = agent
        self._pipeline = pipeline

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        pipeline = self._pipeline
        pipeline_states = pipeline.states(observation)
        if pipeline_states is None:
            return pipeline.held(memory)
        outputs = self._agent.outputs(pipeline_states, pipeline.adjacency)
        why = f"decision of {len(outputs)} agents"
        return pipeline.desired(pipeline.configurations(outputs, observation), why, memory)


def make(making: Making) -> Policy:
    """For ``--policy rl.faasconf.policy:make``; settings in ``--policy-settings FILE``. Raises SettingsError."""
    settings = making.settings_as(MakingSettings)
    if making.settings.slo_s is None:
        raise SettingsError("slo_s is None; faasconf sees latencies relative to a target (--slo-ms)")
    name = making.topology.pipeline
    path = Path(settings.weights) if settings.weights else learnt_file("faasconf", name)
    if path is None or not path.is_file():
        where = f"at {path}" if path else f"of {name}"
        raise SettingsError(
            f"faasconf: there are no weights {where}; train them (python -m rl.faasconf.train) and name the file as "
            f"weights in the policy's settings"
        )
    return FaasconfPolicy(load(path)[0], Pipeline(making.topology, making.limits, making.settings.slo_s))
