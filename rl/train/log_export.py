"""``smoe lab export-log``: a controller's log as a Minari data set, for the offline learners of others.

A step is a window, with all its decisions at once: observations are those of ``smoe/Pipeline-v0`` that do not depend on
how far a window is decided (``segments``, ``experts``, ``pipeline``), actions the positions in Φ that were in force
(:meth:`rl.experience.Experience.actions`, flattened), the reward that of Eq. (13) with the windows' mean cost as C_ref.
An episode is a stretch of windows without a gap; it is truncated, never terminated: scaling goes on. Where windows are
longer than the controller's interval, episodes overlap.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from gymnasium import spaces

from rl.agent.contract import State
from rl.agent.log_options import manifest_option
from rl.env import state_spaces
from rl.experience import Experience
from rl.reward import RewardSettings, cost_rewards, penalty
from rl.train import online
from rl.train.errors import TrainingError
from traces.options import json_option
from traces.provenance import path_sha256

PLACE = "MINARI_DATASETS_PATH"
"""Where Minari looks for data sets."""


def stretches(windows: Iterable[Experience]) -> list[list[Experience]]:
    """Windows that follow each other without a gap. Those that overlap are in different stretches."""
    every: list[list[Experience]] = []
    last_by_state: dict[int, list[Experience]] = {}
    for one in windows:
        stretch = last_by_state.pop(id(one.state), None)
        if stretch is None:
            every.append(stretch := [])
        stretch.append(one)
        last_by_state[id(one.following)] = stretch
    return every


def rewards_of(windows: Sequence[Experience], slo_s: float, reference: float, settings: RewardSettings) -> list[float]:
    """Rewards of Eq. (13), a window each. ``reference``: C_ref of a window, in the log's currency."""
    costs = [one.busy if settings.meter == "busy" else one.provisioned for one in windows]
    return [
        float(cost_rewards(cost, reference, settings).sum()) + penalty(one.p95_s, slo_s, settings)
        for one, cost in zip(windows, costs, strict=True)
    ]


def export(logged: online.Logged, dataset: str, settings: RewardSettings, about: str) -> int:
    """Write ``dataset`` where Minari keeps them; returns its episodes. Raises TrainingError where there is one of that
    name, for a name that Minari does not take, and for windows that cost nothing."""
    import minari  # takes a second, and only this command needs it
    from minari.data_collector import EpisodeBuffer

    encoder, reference = logged.encoder, online.mean_cost(logged, settings.meter == "busy")
    episodes = []
    for number, windows in enumerate(stretches(logged.windows)):
        states = [_observed(state) for state in (*(one.state for one in windows), windows[-1].following)]
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations={name: [one[name] for one in states] for name in states[0]},
                actions=[one.actions.astype(np.int64).ravel() for one in windows],
                rewards=rewards_of(windows, encoder.slo_s, reference, settings),
                terminations=[False] * len(windows),
                truncations=[False] * (len(windows) - 1) + [True],
                infos={},
            )
        )
    index = encoder.configuration_index
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no author and no link to code: a log has neither
            minari.create_dataset_from_buffers(
                dataset, episodes, observation_space=spaces.Dict(state_spaces(*index.mask.shape)),
                action_space=spaces.MultiDiscrete(np.tile(index.sizes, index.mask.size)),
                algorithm_name="a controller's log", description=about, data_format="hdf5",
            )  # fmt: skip
    except ValueError as error:
        raise TrainingError(f"Minari did not take {dataset!r}: {error}") from error
    return len(episodes)


def _observed(state: State) -> dict[str, Any]:
    return {
        "segments": state.segments.ravel(),
        "experts": state.experts.ravel(),
        "pipeline": state.pipeline.ravel(),
    }


@click.command("export-log")
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="A controller's log folder (smoe autoscale --log-dir).",
)
@manifest_option
@click.option("--dataset", default="smoe/log-v0", help="Its name, as Minari's are: namespace/name-v0.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder of Minari's data sets. [default: ${PLACE}, else Minari's own]",
)
@click.option("--slo-ms", type=click.FloatRange(min=0.1), help="P95 target in milliseconds. [default: the log's]")
@json_option
def export_log(
    log: Path, manifest: Path | None, dataset: str, out: Path | None, slo_ms: float | None, as_json: bool
) -> None:
    """Write a controller's log as a Minari data set, which offline learners read.

    A step is a window: what the learnt policy would have seen, what was in force, and the reward of Eq. (13), by
    whichever policy decided. Read it with minari.load_dataset.
    """
    if out is not None:
        os.environ[PLACE] = str(out.resolve())
    logged = online.read(log, None, None if slo_ms is None else slo_ms / 1000, manifest)
    sha256 = path_sha256(log)
    about = f"Windows of {logged.pipeline}, {logged.window_s:g} s each; log {sha256}"
    episodes = export(logged, dataset, RewardSettings(), about)
    outcome = {"dataset": dataset, "episodes": episodes, "windows": len(logged.windows), "log_sha256": sha256}
    click.echo(
        json.dumps(outcome)
        if as_json
        else f"{dataset}: {outcome['windows']} windows of {logged.pipeline} in {episodes} stretches without a gap"
    )
