"""Episodes of one pipeline side by side: states are decided in one pass, then each plays its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.agent.contract import State
from rl.episodes import Branch, Episode, Outcome

Actions = NDArray[np.int16]
Decide = Callable[[list[Episode], list[State]], Sequence[Actions]]
"""States [lanes] of one pipeline, each with its episode → actions [n, K, 4] of each."""
Vary = Callable[[list[State], Sequence[Actions]], Sequence[Sequence[Actions]]]
"""States and decided actions [lanes] → for each lane others to be simulated beside them."""


@dataclass(frozen=True, eq=False)
class Played:
    """One window of one lane."""

    lane: int
    episode: Episode
    state: State
    outcome: Outcome
    following: State
    branches: Sequence[Branch] = ()


def play(episodes: Sequence[Episode], decide: Decide, vary: Vary | None = None) -> Iterator[list[Played]]:
    """Play all to their ends, a window of each at a time; a lane that has ended is left out."""
    while going := [lane for lane, episode in enumerate(episodes) if episode.windows_left]:
        states = [episodes[lane].state() for lane in going]
        actions = decide([episodes[lane] for lane in going], states)
        others = [()] * len(going) if vary is None else vary(states, actions)
        row = []
        for lane, state, action, varied in zip(going, states, actions, others, strict=True):
            episode = episodes[lane]
            branches = [episode.branch(other) for other in varied]
            row.append(Played(lane, episode, state, episode.step(action), episode.state(), branches))
        yield row
