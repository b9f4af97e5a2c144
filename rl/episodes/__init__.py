"""Whole episodes in the simulator for learning: which clips, with what start, and windows simulated one by one.

``clips`` chooses episodes of the train and validation sets, ``episode`` simulates them through the controller's own
state and decision code. Never here: the test set, and any copy of the controller's code.
"""

from __future__ import annotations

from rl.episodes.clips import (
    Clip,
    Work,
    episode_of,
    in_world_of,
    paper_cost,
    start_of,
    steady_cost,
    training_clips,
    work_of,
)
from rl.episodes.episode import WINDOW_S, Branch, Episode, Outcome

__all__ = [
    "WINDOW_S",
    "Branch",
    "Clip",
    "Episode",
    "Outcome",
    "Work",
    "episode_of",
    "in_world_of",
    "paper_cost",
    "start_of",
    "steady_cost",
    "training_clips",
    "work_of",
]
