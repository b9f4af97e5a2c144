"""Which agents are neighbours: experts between which a pass goes directly, through a segment that is no agent."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from autoscaler.contract import NodeInfo, Topology


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
