"""What a learnt policy sees and does, in numbers: the one encoder of training and of the controller (section 4.2).

``catalogue`` names every number, its unit and range; ``configuration_index`` turns configurations of Φ into positions
and features and back; ``calls`` states what a call takes on each resource; ``history`` remembers past windows;
``encoder`` makes a :class:`rl.agent.contract.State` of an observation. All numbers are relative (to λ, to the window,
to a mean call), so that one agent serves any pipeline. Never here: rewards, networks, and any look at what a window is
yet to bring.
"""

from __future__ import annotations

from rl.features.calls import CallTimes, calls_of, calls_of_cores, mean_calls
from rl.features.catalogue import NODE_FEATURES, PIPELINE_FEATURES, Feature
from rl.features.configuration_index import ConfigurationIndex, space_of
from rl.features.encoder import Encoder
from rl.features.history import History

__all__ = [
    "NODE_FEATURES",
    "PIPELINE_FEATURES",
    "CallTimes",
    "ConfigurationIndex",
    "Encoder",
    "Feature",
    "History",
    "calls_of",
    "calls_of_cores",
    "mean_calls",
    "space_of",
]
