"""Why a decision is what it is: which experts the pointer weighed, and the best configurations with their scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autoscaler.contract import Configuration
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch, State
from rl.features import Encoder


@dataclass(frozen=True)
class Choice:
    """One configuration of an expert, as Eq. (12) sees it."""

    configuration: Configuration
    score: float
    """g."""
    probability: float
    """a: the softmax over all that Eq. (2) allows."""


@dataclass(frozen=True)
class ExpertReasons:
    """What was decided for one expert, and from what."""

    layer: int
    expert: int
    function: str
    pointer: float
    """Its weight in its layer's context (Eq. 11); the layer's weights sum to 1."""
    present: Configuration
    """In force before; the nearest of Φ."""
    chosen: Choice
    best: tuple[Choice, ...]
    """The highest scores, falling; the first is what is chosen, unless the cluster has no room for it."""
    entropy: float
    """Entropy of the softmax, nats: how open the choice was."""
    allowed: int
    """Configurations that Eq. (2) leaves."""


def explain(actor: SisoActor, encoder: Encoder, state: State, top: int = 3) -> list[ExpertReasons]:
    """Reasons of every expert in order of layer and number, for what ``actor`` decides in ``state``."""
    batch = Batch.of(encoder.space, [state])
    chosen = actor.decide(batch)
    mask = encoder.configuration_index.mask
    with torch.no_grad():
        weights, scores = (part[0].numpy()[mask] for part in actor.explain(batch, chosen))
        scored = actor.scores(batch, chosen)
        actions, logs = scored.top(top)
        log_prob, entropy = scored.log_prob(chosen[0][torch.from_numpy(mask)]), scored.entropy()
        option_scores = torch.stack([scored.score(actions[:, rank]) for rank in range(actions.shape[1])], 1)
    memories, resources, _, concurrencies = encoder.configuration_index.sizes
    allowed = (memories - state.least_memory[mask].astype(np.int64)).sum(-1) * resources * concurrencies
    reasons = []
    for row, (layer, expert) in enumerate(np.argwhere(mask).tolist()):
        best = tuple(
            Choice(configuration, float(option_scores[row, rank]), float(logs[row, rank].exp()))
            for rank, configuration in enumerate(_configurations(encoder, actions[row]))
            if rank < max(1, allowed[row])
        )
        reasons.append(
            ExpertReasons(
                layer=layer,
                expert=expert,
                function=encoder.configuration_index.functions[layer][expert],
                pointer=float(weights[row]),
                present=_configurations(encoder, torch.from_numpy(state.present[layer, expert][None]))[0],
                chosen=Choice(
                    _configurations(encoder, chosen[0, layer, expert][None])[0],
                    float(scores[row]),
                    float(log_prob[row].exp()),
                ),
                best=best,
                entropy=float(entropy[row]),
                allowed=int(allowed[row]),
            )
        )
    return reasons


def _configurations(encoder: Encoder, actions: Tensor) -> list[Configuration]:
    """Configurations of positions [rows, 4]."""
    numbers = np.ravel_multi_index(tuple(actions.numpy().astype(np.int64).T), encoder.configuration_index.sizes)
    return [encoder.configuration_index.space[int(number)] for number in numbers]
