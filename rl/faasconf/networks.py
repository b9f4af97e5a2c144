"""Attention, actor and critic of FaaSConf, the same for all agents.

Mean field: an agent acts on its own state and the attended state of its neighbours, and is judged by both with its
own action and the attended action. Sizes as in the public repository: 64 hidden units with batch normalisation, 32 for
the attention. B states, N agents, S features of an agent, A outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HIDDEN, ATTENTION = 64, 32
EPSILON = 1e-3
"""Added to a row's sum before it is normalised, so that an agent without neighbours attends to nothing."""


class Attention(nn.Module):
    """α_ij = (q_i · k_j)² A_ij / (Σ_j (q_i · k_j)² A_ij + ε), with q and k linear in the agents' states."""

    def __init__(self, features: int, hidden: int = ATTENTION) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(features, hidden))
        self.key = nn.Parameter(torch.empty(features, hidden))
        bound = features**-0.5
        for weight in (self.query, self.key):
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, states: Tensor, adjacency: Tensor) -> Tensor:
        """``states`` [B, N, S], ``adjacency`` [N, N] to weights [B, N, N], rows sum to just below 1, or 0."""
        query, key = states @ self.query, states @ self.key  # [B, N, 32]
        score = (query @ key.transpose(1, 2)).square() * adjacency  # [B, N, N]
        return torch.as_tensor(score / (score.sum(dim=2, keepdim=True) + EPSILON))


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.BatchNorm1d(HIDDEN)),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.BatchNorm1d(HIDDEN)),
        nn.Linear(HIDDEN, outputs),
    )


class Actor(nn.Module):
    """π: an agent's state and its attended state to ``outputs`` numbers in (0, 1)."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.attention = Attention(features)
        self.layers = _layers(2 * features, outputs)

    def forward(self, states: Tensor, adjacency: Tensor) -> Tensor:
        """``states`` [B, N, S] to [B, N, A]."""
        return torch.sigmoid(self.logits(states, adjacency))

    def logits(self, states: Tensor, adjacency: Tensor) -> Tensor:
        """Before the sigmoid. [..., actions]."""
        attended = self.attention(states, adjacency) @ states  # [B, N, S]
        both = torch.cat([states, attended], dim=2)  # [B, N, 2S]
        return torch.as_tensor(self.layers(both.flatten(0, 1)).unflatten(0, both.shape[:2]))


class Critic(nn.Module):
    """Q of every agent: its state and action, and those attended to."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.attention = Attention(features)
        self.layers = _layers(2 * (features + outputs), 1)

    def forward(self, states: Tensor, actions: Tensor, adjacency: Tensor) -> Tensor:
        """``states`` [B, N, S], ``actions`` [B, N, A] to [B, N]."""
        weights = self.attention(states, adjacency)  # [B, N, N]
        joint = torch.cat([states, actions], dim=2)  # [B, N, S + A]
        both = torch.cat([joint, weights @ joint], dim=2)  # [B, N, 2(S + A)]
        return torch.as_tensor(self.layers(both.flatten(0, 1)).view(both.shape[:2]))
