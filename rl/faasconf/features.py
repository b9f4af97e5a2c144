"""An agent's state: its configuration, what it used and how long it took, and the load of the whole pipeline.

The kinds of numbers that FaaSConf's agents see (configuration, utilisation, latency, users), made from the controller's
own observation, in training as in production.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoscaler.contract import ConfigurationSpace, NodeInfo, NodeObservation, Observation
from rl.faasconf.actions import OUTPUTS, outputs_of
from simulation.arrays import Singles

FEATURES = (
    *OUTPUTS,
    "utilisation",  # of the CPU cores or the GPU share, 0 to 1
    "memory_utilisation",  # 0 to 1
    "slots_used",  # calls at replicas and waiting over slots, at most 4
    "waiting",  # log(1 + calls waiting)
    "latency_p95",  # over the layer's part of λ, at most 10; 0 without calls
    "latency_mean",  # the same
    "tokens_per_s",  # log(1 + x)
    "requests_per_s",  # log(1 + x)
    "pipeline_requests_per_s",  # log(1 + x)
    "pipeline_latency_p95",  # over λ, at most 5; 0 where nothing was answered
)


def states(
    observation: Observation, experts: Sequence[NodeInfo], space: ConfigurationSpace, slo_s: float, layers: int
) -> Singles | None:
    """[agents, features] float32, columns as in ``FEATURES``; None where an expert's numbers are missing."""
    if observation.stale or observation.requests_per_s is None:
        return None
    shared = (math.log1p(observation.requests_per_s), min((observation.latency_p95_s or 0.0) / slo_s, 5.0))
    rows = []
    for node in experts:
        node_row = observation.node(node.id)
        row = None if node_row is None else _row(node_row, space, slo_s / layers)
        if row is None:
            return None
        rows.append(np.concatenate([row, np.array(shared, dtype=np.float32)]))
    return np.stack(rows)


def _row(node: NodeObservation, space: ConfigurationSpace, part_s: float) -> Singles | None:
    """All but the pipeline's own. ``part_s``: the layer's part of λ."""
    configuration = node.configuration
    if configuration is None or node.tokens_per_s is None or node.requests_per_s is None:
        return None
    used = node.gpu_utilisation if configuration.gpu_share else node.cpu_utilisation
    calls = (node.in_flight or 0.0) + (node.waiting or 0.0)
    slots = configuration.replicas * configuration.concurrency
    is_observed = (
        min(used or 0.0, 1.0),
        min(node.memory_utilisation or 0.0, 1.0),
        min(calls / slots, 4.0) if slots else 0.0,
        math.log1p(node.waiting or 0.0),
        min((node.latency_p95_s or 0.0) / part_s, 10.0),
        min((node.latency_mean_s or 0.0) / part_s, 10.0),
        math.log1p(node.tokens_per_s),
        math.log1p(node.requests_per_s),
    )
    return np.concatenate([outputs_of(configuration, space), np.array(is_observed, dtype=np.float32)])
