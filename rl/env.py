"""``smoe/Pipeline-v0``: the scaling of one pipeline as a Gymnasium environment, one step a layer's decision.

Importing this module registers it; ``gymnasium.make("rl.env:smoe/Pipeline-v0", workload="bert-8", pattern="bursty")``
does that itself. Nothing else in this room imports Gymnasium. Observation and action, number by number:
``docs/environment.md``.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from autoscaler.contract import Configuration
from evaluation.comparison.errors import EvaluationError
from rl.agent.configuration_table import features_of
from rl.agent.contract import CONFIGURATION_FEATURES, State
from rl.episodes import WINDOW_S, Clip, Episode, episode_of, in_world_of, steady_cost, work_of
from rl.episodes.clips import SEEDS
from rl.episodes.episode import encoder_of
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder
from rl.features.catalogue import Feature
from rl.reward import RewardSettings
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World
from traces.splits import Split

ENVIRONMENT = "smoe/Pipeline-v0"
MOST_TRIED = 100
"""Hours that a ``reset`` looks at."""
Observed = dict[str, Any]
CONFIGURATION_BOUNDS = (-1.0, 8.0)
"""Bounds of a configuration's features; the upper one is of pipelines with more than the paper's cores and replicas."""


class PipelineEnv(gymnasium.Env[Observed, NDArray[np.int64]]):
    """An episode is an hour (``seconds``) of a clip, a window ``window_s``, a step the decision of one layer's experts.

    Each ``reset`` draws another clip of ``split`` by its seed. The state of a window stays while its layers are decided
    and is joined by what is in force of what was decided. Positions that break Eq. (2) are moved to the nearest that
    keep it: more memory, then more replicas; the controller's limits follow. An episode is truncated at its end, never
    terminated: scaling goes on.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        workload: str | Workload = "bert-8",
        pattern: str = "bursty",
        *,
        split: Split = "train",
        mean_rps: float = 20.0,
        tokens: int = 0,
        seconds: float = 3600.0,
        window_s: float = WINDOW_S,
        world: World = "mixed",
        relative_slo: float | None = None,
        settings: RewardSettings | None = None,
        start: Configuration | None = None,
        cache: Path | None = None,
        data: Path | None = None,
    ) -> None:
        """Raises EvaluationError.

        ``workload``: one of the paper's six by name, or a ``Workload``.
        ``pattern``: ``slow``, ``normal``, ``bursty`` or ``diurnal``.
        ``split``: set that clips are from, or ``"validation"``.
        ``mean_rps``: requests per second.
        ``tokens``: mean tokens of a request; 0: the workload's.
        ``seconds``: length of an episode.
        ``window_s``: length of a window.
        ``world``: cluster; hours for which it has no room are passed over.
        ``relative_slo``: λ over the P95 of steady requests with unlimited capacity; None: the workload's λ.
        ``settings``: of the reward; None: its defaults.
        ``start``: configuration of every expert at the start; None: the evaluation's, which a search finds.
        ``cache``: folder that keeps such starts, which take seconds to find.
        ``data``: folder of the public traces; None: the usual one, else synthetic arrivals.
        """
        name = workload if isinstance(workload, str) else workload.name
        self._clip = Clip(name, pattern, 0, split, mean_rps, tokens, seconds, window_s, world=world)
        self._settings, self._start, self._cache, self._data = settings, start, cache, data
        plain = paper_workload(name, mean_tokens=tokens or None) if isinstance(workload, str) else workload
        self._workload = in_world_of(plain, world, relative_slo) if plain.host is None else plain
        self._of_seeds = isinstance(workload, str)
        self._encoder = encoder_of(self._workload)
        self._layers, self._width = self._encoder.configuration_index.mask.shape
        self.observation_space = self._observation_space()
        self.action_space = spaces.MultiDiscrete(np.tile(self._encoder.configuration_index.sizes, self._width))
        self._episode: Episode | None = None
        self._layer = 0

    @property
    def episode(self) -> Episode:
        """The episode under way. Raises RuntimeError before the first ``reset``."""
        if self._episode is None:
            raise RuntimeError("call reset() first")
        return self._episode

    @property
    def encoder(self) -> Encoder:
        """What makes states; ``encoder.space`` is Φ with the pipeline's DAG."""
        return self._encoder

    @property
    def deciding(self) -> tuple[State, NDArray[np.int16], int]:
        """The window's state, what is in force of the layers decided so far [n, K, 4] (zeros elsewhere), and the layer
        that comes. Raises RuntimeError before the first ``reset``."""
        _ = self.episode
        return self._state, self._decided, self._layer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        clip, workload = self._drawn()
        start = None
        if self._start is not None:
            start = work_of(clip, self._data, workload).workload.initial(self._start)
        settings = self._settings or RewardSettings()
        self._episode = episode_of(
            clip, settings=settings, start=start, cache=self._cache, data=self._data, workload=workload,
            reference=steady_cost(self._workload, settings.meter, clip.window_s),
        )  # fmt: skip
        self._begin()
        return self._observe(), {"clip": asdict(clip)}

    def _drawn(self) -> tuple[Clip, Workload]:
        """The next clip for which the world has room, and its workload. Raises EvaluationError without one."""
        for _ in range(MOST_TRIED):
            clip = replace(self._clip, seed=int(self.np_random.integers(2**31)))
            workload = self._workload
            if self._of_seeds:
                drawn = paper_workload(
                    clip.workload, mean_tokens=clip.tokens or None, mean_rps=clip.mean_rps,
                    seed=SEEDS[clip.split] + clip.seed,
                )  # fmt: skip
                workload = replace(drawn, space=workload.space, slo_s=workload.slo_s)
            try:
                work_of(clip, self._data, workload)
            except EvaluationError as error:
                why = error
            else:
                return clip, workload
        raise EvaluationError(f"none of {MOST_TRIED} hours can be served, the last because {why}")

    def step(self, action: NDArray[np.int64]) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        episode, layer = self.episode, self._layer
        if not episode.windows_left:
            raise RuntimeError("the episode has ended: call reset()")
        desired = self._state.present.copy()
        desired[layer] = np.asarray(action).reshape(self._width, 4)
        desired = self._encoder.configuration_index.within(desired, self._state.least_memory)
        if layer == 0:
            episode.begin()
        reward = episode.decide_layer(layer, desired[layer])
        self._decided[layer] = executed = episode.in_force(layer)
        info: dict[str, Any] = {"layer": layer, "executed": executed}
        self._layer += 1
        if self._layer == self._layers:
            outcome = episode.end()
            reward += outcome.penalty
            info |= {
                "p95_s": outcome.p95_s,
                "busy": float(outcome.busy.sum()),
                "provisioned": float(outcome.provisioned.sum()),
                "finished": outcome.finished,
                "overdue": outcome.overdue,
            }
            self._begin()
        return self._observe(), reward, False, not episode.windows_left, info

    def _begin(self) -> None:
        self._state: State = self.episode.state()
        self._decided = np.zeros((self._layers, self._width, 4), dtype=np.int16)
        self._layer = 0

    def _observe(self) -> Observed:
        state, configuration_index = self._state, self._encoder.configuration_index
        chosen = features_of(self._encoder.space, torch.from_numpy(self._decided.astype(np.int64))).numpy()
        decided_mask = configuration_index.mask & (np.arange(self._layers) < self._layer)[:, None]
        least = (
            state.least_memory[self._layer]
            / configuration_index.sizes[0]
            * configuration_index.mask[self._layer][:, None]
        )
        return {
            "segments": state.segments.flatten(),
            "experts": state.experts.flatten(),
            "pipeline": state.pipeline.copy(),
            "decided": np.where(decided_mask[..., None], chosen, 0.0).astype(np.float32).ravel(),
            "layer": (np.arange(self._layers) == self._layer).astype(np.float32),
            "least_memory": least.astype(np.float32).ravel(),
        }

    def _observation_space(self) -> spaces.Dict:
        layers, width = self._layers, self._width
        replicas = self._encoder.configuration_index.sizes[2]
        chosen = len(CONFIGURATION_FEATURES)
        return spaces.Dict(
            {
                **state_spaces(layers, width),
                "decided": spaces.Box(*CONFIGURATION_BOUNDS, (layers * width * chosen,), np.float32),
                "layer": spaces.Box(0, 1, (layers,), np.float32),
                "least_memory": spaces.Box(0, 1, (width * replicas,), np.float32),
            }
        )


def state_spaces(
    layers: int,
    width: int,
    nodes: tuple[Feature, ...] = NODE_FEATURES,
    pipeline: tuple[Feature, ...] = PIPELINE_FEATURES,
) -> dict[str, spaces.Space[Any]]:
    """Spaces of a window's state, flattened: ``layers`` MoE layers of at most ``width`` experts."""
    return {
        "segments": _box(nodes, layers + 1),
        "experts": _box(nodes, layers * width),
        "pipeline": _box(pipeline, 1),
    }


def _box(features: tuple[Feature, ...], rows: int) -> spaces.Box:
    low, high = np.array([feature.bounds for feature in features], dtype=np.float32).T
    low = np.minimum(low, 0)  # rows of padding are zeros
    return spaces.Box(np.tile(low, rows), np.tile(np.maximum(high, 0), rows), dtype=np.float32)


if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, entry_point="rl.env:PipelineEnv")
