"""The ablation ``ddpg-only``: the state of the whole pipeline as one flat vector, a monolithic actor.

Neither DAGNN nor pointer nor any sharing between experts, so it is bound to a largest pipeline (``settings.layers``
and ``settings.experts``), fills up with zeros, and decides all layers at once. What it decides from is the same as in
the other arms: scores of every configuration in Φ by the junction tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.agent.actor import SisoActor, spread
from rl.agent.contract import Batch
from rl.agent.errors import NetworkError
from rl.agent.pointer import even
from rl.agent.settings import NetworkSettings

WIDER = 4
"""Hidden units of the monolithic networks, as a multiple of ``settings.hidden``."""


class FlatState(nn.Module):
    """Batch → [B, 4 h]: two layers over all features of all nodes."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.layers, self.experts = settings.layers, settings.experts
        nodes = self.layers + 1 + self.layers * self.experts
        inputs = nodes * settings.node_features + settings.pipeline_features
        width = WIDER * settings.hidden
        self.network = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, batch: Batch) -> Tensor:
        """Raises NetworkError for a pipeline larger than what the network was built for. Returns [B, width]."""
        experts = self._filled_experts(batch.experts * batch.space.mask.unsqueeze(-1))
        segments = _filled(batch.segments, 1, self.layers + 1)
        output: Tensor = self.network(torch.cat((segments.flatten(1), experts.flatten(1), batch.pipeline), -1))
        return output

    def _filled_experts(self, experts: Tensor) -> Tensor:
        """[B, n, K, …] → [B, layers, experts, …]."""
        layers, most = experts.shape[1:3]
        if layers > self.layers or most > self.experts:
            raise NetworkError(
                f"the flat network takes pipelines of up to {self.layers} layers of {self.experts} experts, "
                f"this one has {layers} of {most}"
            )
        return _filled(_filled(experts, 2, self.experts), 1, self.layers)


def _filled(values: Tensor, axis: int, size: int) -> Tensor:
    """Zeros behind ``values`` along an axis, up to ``size``."""
    shape = list(values.shape)
    shape[axis] = size - shape[axis]
    return torch.cat((values, values.new_zeros(shape)), axis) if shape[axis] else values


class FlatActor(SisoActor):
    """Flat state → queries of all experts of all layers at once; decisions of earlier layers are not looked at."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__(settings)
        self.state = FlatState(settings)
        self.to_queries = nn.Linear(WIDER * settings.hidden, settings.layers * settings.experts * self.scoring.queries)

    def queries(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        mask = batch.space.mask
        layers, experts = mask.shape
        queries = self.to_queries(self.state(batch)).view(len(executed), self.state.layers, self.state.experts, -1)
        return queries[:, :layers, :experts], even(mask).expand(len(executed), -1, -1)

    def decide(self, batch: Batch, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """See ``ActorNetwork``. Returns [B, n, K, 4]."""
        with torch.inference_mode():
            scored = self.scores(batch, batch.present)
            actions = spread(
                scored.sample(temperature, generator) if temperature > 0 else scored.best(), batch.space.mask
            )
        return actions.clone()
