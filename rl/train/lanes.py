"""Episodes of one pipeline side by side: states are decided in one pass, then each plays its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.agent.contract import State
from rl.episodes import Episode, Outcome

Actions = NDArray[np.int16]
Decide = Callable[[list[Episode], list[State]], Sequence[Actions]]
"""States [lanes] of one pipeline, each with its episode → actions [n, K, 4] of each."""


@dataclass(frozen=True, eq=False)
class Played:
    """One window of one lane."""

    lane: int
    episode: Episode
    state: State
    outcome: Outcome
    following: State


def play(episodes: Sequence[Episode], decide: Decide) -> Iterator[list[Played]]:
    """Play all to their ends, a window of each at a time; a lane that has ended is left out."""
    while going := [lane for lane, episode in enumerate(episodes) if episode.windows_left]:
        states = [episodes[lane].state() for lane in going]
        actions = decide([episodes[lane] for lane in going], states)
        row = []
        for lane, state, action in zip(going, states, actions, strict=True):
            outcome = episodes[lane].step(action)
            row.append(Played(lane, episodes[lane], state, outcome, episodes[lane].state()))
        yield row
