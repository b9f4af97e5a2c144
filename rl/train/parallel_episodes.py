"""Episodes of one pipeline side by side: states are decided in one pass, then each simulates its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl.agent.contract import State
from rl.episodes import Branch, Episode, Outcome

Actions = NDArray[np.int16]
Decide = Callable[[list[Episode], list[State]], Sequence[Actions]]
"""States [episodes] of one pipeline, each with its episode → actions [n, K, 4] of each."""
Vary = Callable[[list[State], Sequence[Actions]], Sequence[Sequence[Actions]]]
"""States and decided actions [episodes] → for each episode_number others to be simulated next to them."""


@dataclass(frozen=True, eq=False)
class EpisodeWindow:
    """One window of one episode_number."""

    episode_number: int
    episode: Episode
    state: State
    outcome: Outcome
    following: State
    branches: Sequence[Branch] = ()


def simulate_all(
    episodes: Sequence[Episode], decide: Decide, vary: Vary | None = None
) -> Iterator[list[EpisodeWindow]]:
    """Simulate all to their ends, a window of each at a time; a episode_number that has ended is left out."""
    while going := [episode_number for episode_number, episode in enumerate(episodes) if episode.windows_left]:
        states = [episodes[episode_number].state() for episode_number in going]
        actions = decide([episodes[episode_number] for episode_number in going], states)
        others = [()] * len(going) if vary is None else vary(states, actions)
        row = []
        for episode_number, state, action, varied in zip(going, states, actions, others, strict=True):
            episode = episodes[episode_number]
            branches = [episode.branch(other) for other in varied]
            row.append(EpisodeWindow(episode_number, episode, state, episode.step(action), episode.state(), branches))
        yield row
