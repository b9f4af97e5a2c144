"""What the pointer is taught besides the actor's loss: who will be slow in its layer.

The paper's pointer is to find the experts that its layer waits for (section 4.3). Through the context alone it gets
very little gradient, and it was found to weigh all experts the same. So its weights (Eq. 11) are also drawn towards the
shares that experts had of their layer's latency in the window that followed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl.agent.ddpg.buffer import WindowSamples
from rl.agent.ddpg.visited import NODE

STEEP = 4.0
"""A call twice as long as another's draws 2^4 times as much weight: the slowest one is what the layer waits for."""


def pointer_loss(samples: WindowSamples, weights: Tensor) -> Tensor:
    """Mean cross-entropy of the pointer's ``weights`` [B, n, K] to who was slow in the window that was simulated, over
    layers of which two experts or more were called. Scalar."""
    ahead, mask = samples.next_observations.experts, samples.observations.space.mask
    called = (NODE.is_known("latency_p95", ahead) > 0) & mask & samples.simulated[:, None, None]
    slow = (STEEP * NODE.log("latency_p95", ahead)).masked_fill(~called, -torch.inf)
    counted = called.sum(-1) > 1
    shares = slow[counted].softmax(-1)
    losses = -(shares * weights[counted].clamp(min=1e-6).log()).sum(-1)
    return losses.mean() if len(losses) else weights.sum() * 0.0
