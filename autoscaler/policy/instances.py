"""Segments of a decoder that keeps keys and values, as any policy for replicas can judge them: together.

An *instance* is one replica of every segment, holds its texts from their first to their last token, and runs one
iteration at a time. So no segment by itself is ever busy, whatever waits, and a replica of one segment without one of
each other is of no use. Policies therefore see texts in place of calls: of every segment those in iterations are *in
flight* and those in the queue *waiting*, and its concurrency counts texts at once in an instance. Of what they then
desire for the segments each gets the most.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.contract import Configuration, Memory, NodeObservation, Observation, Policy, Proposal


class InstancesPolicy:
    """``policy``, asked about texts at instances where the window has any; name and memory are its own."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.chosen = policy

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        proposal = self.chosen.propose(as_instances(observation), now_s, memory)
        return proposal if observation.generation is None else together(proposal, observation)


def as_instances(observation: Observation) -> Observation:
    """The window with texts in place of calls at every segment; one without texts as it is."""
    texts = observation.generation
    if texts is None:
        return observation
    ready = [node.ready_replicas for node in observation.nodes if node.kind == "segment"]
    counts = [count for count in ready if count is not None]
    instances = min(counts) if counts and len(counts) == len(ready) else None
    nodes = tuple(
        _as_instance(node, texts.running, texts.waiting, instances) if node.kind == "segment" else node
        for node in observation.nodes
    )
    return replace(observation, nodes=nodes)


def _as_instance(
    node: NodeObservation, running: float | None, waiting: float | None, instances: int | None
) -> NodeObservation:
    present = node.configuration
    slots = None if present is None or instances is None else instances * present.concurrency
    used = None if running is None or not slots else running / slots
    return node._replace(in_flight=running, waiting=waiting, ready_replicas=instances, concurrency_utilisation=used)


def together(proposal: Proposal, observation: Observation) -> Proposal:
    """Every function with segments gets the most replicas that one of them is to have; one that is held counts with
    what it has. Sizes stay each function's own."""
    present: dict[str, Configuration] = {
        node.function: node.configuration
        for node in observation.nodes
        if node.kind == "segment" and node.configuration is not None and node.function in proposal.reasons
    }
    if not present or not proposal.desired.keys() & present.keys():
        return proposal
    most = max(proposal.desired.get(name, now).replicas for name, now in present.items())
    desired = {name: proposal.desired.get(name, now).with_replicas(most) for name, now in present.items()}
    return replace(proposal, desired={**proposal.desired, **desired})
