"""Single features of a state by name, as the numbers they were before they were encoded (``rl.features.catalogue``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rl.agent.errors import NetworkError
from rl.agent.settings import NetworkSettings
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.catalogue import Feature


class Seen:
    """Reads encoded features [.., F] of nodes, or [.., G] of the pipeline."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = {one.name: one for one in features}
        self._at = {one.name: at for at, one in enumerate(features)}

    def log(self, name: str, encoded: Tensor) -> Tensor:
        """[..] natural logarithm of a feature whose scale is logarithmic."""
        low, high = math.log(self._features[name].low), math.log(self._features[name].high)
        return low + (encoded[..., self._at[name]] + 1) / 2 * (high - low)

    def is_known(self, name: str, encoded: Tensor) -> Tensor:
        """[..] 1 where a feature is known, else 0."""
        flag = self._features[name].flag
        return torch.ones_like(encoded[..., 0]) if flag is None else 1 - encoded[..., self._at[flag]]


NODE, PIPELINE = Seen(NODE_FEATURES), Seen(PIPELINE_FEATURES)


def check_features(networks: NetworkSettings) -> None:
    """Raises NetworkError where states have other features than this program's."""
    wanted = len(NODE_FEATURES), len(PIPELINE_FEATURES)
    if (networks.node_features, networks.pipeline_features) != wanted:
        raise NetworkError(
            f"the critic of windows reads {wanted[0]} numbers of a node and {wanted[1]} of the pipeline; the networks "
            f"are made for {networks.node_features} and {networks.pipeline_features}"
        )
