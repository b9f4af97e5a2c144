"""Fine-tuning from what a controller logged: off unless somebody calls it, and never exploring.

What is learnt from are windows that were decided in production, behind the decision limits, by whichever policy ran; no
decision is drawn for the sake of learning. The result is an actor to look at and to deploy, not one that changes
itself: in the controller its wishes pass the same limits as before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.buffer import WindowStep
from rl.experience import Experience, experiences
from rl.features import Encoder
from rl.features.lattice import REPLICAS
from rl.train.errors import TrainingError

FEWEST = 64
"""Windows below which nothing is learnt: a handful says little, and forgets much."""


def fine_tune(agent: PipelineDDPG, pipeline: str, log: Path, encoder: Encoder, *, window_s: float, updates: int) -> int:
    """``updates`` updates of an agent (as of ``PipelineDDPG.load``) on the ticks stored in ``log``; returns how many
    windows it learnt from. C_ref is their mean cost on the agent's meter.

    Raises TrainingError for too few windows, LogError, and ValueError where the log is of another pipeline.
    """
    busy = agent.learner.busy_meter
    found = list(experiences(log, encoder))
    if len(found) < FEWEST:
        raise TrainingError(
            f"{log} holds {len(found)} windows to learn from; at least {FEWEST} are needed, decided one after the other"
        )
    reference = float(np.mean([_cost(one, busy).sum() for one in found]))
    if not reference > 0:
        raise TrainingError(f"the windows in {log} cost nothing, so there is nothing to save")
    unit = float(encoder.lattice.unit_per_s.max()) * REPLICAS * window_s / reference
    agent.replay_buffer.register(pipeline, encoder.space, unit)
    for one in found:
        rewards = (-_cost(one, busy) / reference).astype(np.float32)
        p95 = np.nan if one.p95_s is None else one.p95_s / encoder.slo_s
        agent.replay_buffer.add(WindowStep(pipeline, one.state, one.actions, rewards, p95, one.following))
    agent.progress(1.0)  # rates at their end: small steps
    agent.train(updates)
    return len(found)


def _cost(one: Experience, busy: bool) -> np.ndarray:
    return one.busy if busy else one.provisioned
