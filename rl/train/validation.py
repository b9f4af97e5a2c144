"""An actor without noise on clips of the validation set.

The best actor of a run is chosen here, so these clips are no test. Costs are the experts' on the meter that is trained
for; windows are judged as in evaluations: P95 of what was answered in them, over λ where requests wait and none was.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from autoscaler.contract import SLO_QUANTILE
from evaluation.bound.bounds import lower_bound
from evaluation.bound.loads import windows
from evaluation.bound.physics import Physics
from evaluation.comparison.errors import EvaluationError
from evaluation.regimes.judged import Work as ConstantWork
from evaluation.regimes.search import cheapest_uniform
from evaluation.tuning.constants import Hour, Hours
from rl.episodes import WINDOW_S, Clip, Episode, Work, episode_of, training_clips, work_of
from rl.episodes.clips import SEEDS, work_key
from rl.train.errors import TrainingError
from rl.train.parallel_episodes import Decide, simulate_all
from rl.train.settings import TrainingSettings, ValidationSettings
from rl.train.training_workloads import Kind, reference_of, starts_within
from traces.traffic import REPLAYED_PATTERNS, has_sources

FEWEST_JUDGED = 6
"""Windows of a clip that have requests, after the warm-up."""
SYNTHETIC = (
    "no public traces here: training and validation hours are both synthetic, drawn with different seeds "
    "(--traces names a folder of public ones)"
)
MOST_TRIED = 40
MOST_UNSERVED = 5
"""Clips of a pattern in which nothing is found that keeps λ before it is left out, as long as the workload has no clips
of other patterns. Each takes seconds, and where a cluster is too small for a workload all would be in vain."""
MOST_TRIALS = 60
"""Deployments that the search of a configuration that keeps λ judges on a clip."""


@dataclass(frozen=True)
class Judged:
    """One clip under one policy; the windows of the warm-up are not in it."""

    workload: str
    pattern: str
    cost: float
    """Experts', in the price sheet's currency."""
    reference: float
    """C_ref of the counted windows."""
    judged: int
    violated: int
    excess: float
    """Mean of max(P95 / λ - 1, 0) over the judged windows with an answer."""


@dataclass(frozen=True)
class Validation:
    """Results of all clips."""

    clips: tuple[Judged, ...]

    @property
    def cost(self) -> float:
        """Mean over clips of cost / C_ref."""
        return float(np.mean([clip.cost / clip.reference for clip in self.clips]))

    @property
    def violated(self) -> float:
        """Share of all judged windows whose P95 is above λ."""
        return sum(clip.violated for clip in self.clips) / max(1, sum(clip.judged for clip in self.clips))

    @property
    def excess(self) -> float:
        return float(np.mean([clip.excess for clip in self.clips]))

    def score(self, settings: ValidationSettings) -> float:
        """Lower is better: cost, and what windows over λ beyond the allowed share cost."""
        return self.cost + settings.price * max(0.0, self.violated - settings.violated)

    def as_json(self) -> dict[str, object]:
        by_workload: dict[str, list[Judged]] = {}
        for clip in self.clips:
            by_workload.setdefault(clip.workload, []).append(clip)
        return {
            "cost": round(self.cost, 4),
            "violated": round(self.violated, 4),
            "excess": round(self.excess, 4),
            "workloads": {
                name: {"cost": round(part.cost, 4), "violated": round(part.violated, 4)}
                for name, part in ((name, Validation(tuple(some))) for name, some in by_workload.items())
            },
            "clips": [asdict(clip) for clip in self.clips],
        }


class Validator:
    """The clips of a run; starts and bounds are searched once and kept in ``cache``."""

    def __init__(
        self,
        settings: TrainingSettings,
        cache: Path,
        data: Path | None = None,
        on_workload: Callable[[str, int], object] = lambda workload, clips: None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """``on_workload`` hears of each workload how many clips were chosen, which takes a while; meanwhile ``look`` is
        called for each clip and each deployment that is simulated on one, and ends it by raising. Raises TrainingError
        where there are no clips to judge on."""
        self.settings, self.cache, self.data, self._look = settings, cache, data, look
        self._kinds = {kind.name: kind for kind in settings.judged}
        self._works: dict[Clip, Work] = {}
        self.left_out: dict[str, list[str]] = {}
        """Workload → patterns, with their rates where there are several, of which no clip was found in which any
        configuration keeps λ."""
        self.clips: dict[str, list[Clip]] = {}
        for kind in self._kinds.values():
            clips = self._clips_of(kind)
            on_workload(kind.name, len(clips))
            if clips:
                self.clips[kind.name] = clips
        if not self.clips:
            raise TrainingError(f"{self.notes()[-1]}; nothing is left to validate on")

    @property
    def trained(self) -> list[Kind]:
        """Kinds to train on: of those judged the ones that have clips; where nothing keeps λ all that can be learnt is
        to spend nothing or all there is."""
        return [kind for kind in self.settings.kinds if kind.name in self.clips or kind.name not in self._kinds]

    def notes(self) -> list[str]:
        """What is to be known of the clips, in sentences: where they are synthetic, and which workloads they lack."""
        notes = []
        if not has_sources(self.data):
            notes.append(SYNTHETIC)
        if self.left_out:
            names = [
                f"{name} ({', '.join(cells)})" if name in self.clips else name for name, cells in self.left_out.items()
            ]
            notes.append(
                f"left out: {', '.join(names)}: no configuration, the same for all experts, was found that keeps "
                "the SLO there; --relative-slo sets a larger one, --world unlimited has room for every replica"
            )
        return notes

    def work(self, clip: Clip) -> Work:
        """Work of a clip of :attr:`clips`, made once."""
        if clip not in self._works:
            workload = self._kinds[clip.workload].workload(SEEDS[clip.split] + clip.seed, clip.mean_rps)
            self._works[clip] = work_of(clip, self.data, workload)
        return self._works[clip]

    def _rates(self, kind: Kind) -> list[tuple[float, float]]:
        """Lowest and highest mean rate, of one set of clips after the other."""
        return [kind.mean_rps] if kind.mean_rps else [(rate, rate) for rate in self.settings.validation.mean_rps]

    def _clips_of(self, kind: Kind) -> list[Clip]:
        """The clips of every rate and pattern; a pattern without any is put into :attr:`left_out`."""
        clips: list[Clip] = []
        for rates, pattern in itertools.product(self._rates(kind), REPLAYED_PATTERNS):
            some = self._choose(kind, pattern, rates, MOST_TRIED if clips else MOST_UNSERVED)
            clips += some
            if not some:
                at = f" at {rates[0]:g} requests/s" if len(self._rates(kind)) > 1 else ""
                self.left_out.setdefault(kind.name, []).append(pattern + at)
        return clips

    def _choose(self, kind: Kind, pattern: str, rates: tuple[float, float], most_unserved: int) -> list[Clip]:
        """Clips of a pattern with enough windows to be judged: a bursty hour may hold its requests in two of them. None
        where in none of those that had enough, at most ``most_unserved``, λ can be kept. Raises TrainingError."""
        settings, name, unserved = self.settings.validation, kind.name, 0
        drawn = training_clips(
            (name,), (pattern,), seed=len(name), split="validation",
            seconds=settings.seconds * kind.window_s / WINDOW_S, mean_rps=rates,
            window_s=kind.window_s, speed=kind.speed, world=kind.world,
        )  # fmt: skip
        clips: list[Clip] = []
        for clip in itertools.islice(drawn, MOST_TRIED):
            self._look()
            try:
                work = self.work(clip)
            except EvaluationError:
                continue  # no room for its segments
            if not starts_within(self._kinds[name], work.workload, self.settings.standbys.burst):
                continue
            busy = np.unique(work.requests.arrival_s // clip.window_s)
            fewest = min(FEWEST_JUDGED, work.seconds // clip.window_s - settings.warm_up)
            if (busy >= settings.warm_up).sum() >= fewest:
                served = self._served(clip)
                clips += [clip] if served else []
                unserved += not served
            if len(clips) == settings.seeds:
                return clips
            if not clips and unserved == most_unserved:
                break
        if unserved and not clips:
            return []
        raise TrainingError(
            f"validation: {MOST_TRIED} {pattern} clips of {name} have fewer than {settings.seeds} to judge"
        )

    def _served(self, clip: Clip) -> bool:
        """Whether in the world of ``clip`` one configuration for all experts keeps λ: where none is found, windows over
        λ say nothing about an actor. Kept in the cache, as it is simulated; elsewhere there is room for every one."""
        work = self.work(clip)
        if work.workload.capacity is None or work.workload.host is not None:
            return True
        trials = Hours([self.hour(clip)], MOST_TRIALS, self._look)
        return bool(
            self._kept(f"served-{self.settings.validation.warm_up}", work, lambda: cheapest_uniform(trials) is not None)
        )

    def hour(self, clip: Clip) -> Hour:
        """What constants are judged on: the windows of one of :attr:`clips` after the warm-up."""
        work = self.work(clip)
        windows = range(self.settings.validation.warm_up, round(work.seconds / clip.window_s))
        return Hour(ConstantWork(work.workload, work.requests, work.seed), clip.window_s, windows)

    def _kept(self, name: str, work: Work, make: Callable[[], float]) -> float:
        """A number that takes seconds to make, from the cache once it was."""
        path = self.cache / f"{name}-{work_key(work)}.json"
        if not path.is_file():
            value = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        return float(json.loads(path.read_text()))

    def judge(self, decide: Decide, profiled: bool = False) -> Validation:
        """All clips, those of a pipeline side by side. ``profiled``: from the start that profiling the first windows
        finds, as in evaluations (its search takes seconds a clip); else from the first of the kind's ``starts``."""
        judged = []
        for clips in self.clips.values():
            episodes = [self.episode(clip, profiled) for clip in clips]
            costs, p95s = [0.0] * len(clips), [list[float]() for _ in clips]
            for number, row in enumerate(simulate_all(episodes, decide), start=2):  # the first window is the start's
                for window in row if number > self.settings.validation.warm_up else []:
                    costs[window.episode_number] += float(getattr(window.outcome, self.settings.meter).sum())
                    p95_s = window.outcome.window.judged_s(SLO_QUANTILE)
                    p95s[window.episode_number] += [] if p95_s is None else [p95_s]
            for clip, episode, cost, p95 in zip(clips, episodes, costs, p95s, strict=True):
                over = np.array(p95) / episode.workload.slo_s - 1
                finite = over[np.isfinite(over)]
                excess = float(np.maximum(finite, 0).mean()) if finite.size else 0.0
                counted = episode.windows - max(1, self.settings.validation.warm_up)
                reference, over_slo = episode.reference * counted, int((over > 0).sum())
                judged.append(Judged(clip.workload, clip.pattern, cost, reference, over.size, over_slo, excess))
        return Validation(tuple(judged))

    def episode(self, clip: Clip, profiled: bool = False) -> Episode:
        """The episode of one of :attr:`clips`, from its start; ``profiled`` as in :meth:`judge`."""
        kind, workload = self._kinds[clip.workload], self.work(clip).workload
        start = None if profiled else workload.initial(starts_within(kind, workload, self.settings.standbys.burst)[0])
        return episode_of(
            clip, settings=self.settings.reward, start=start, cache=self.cache, data=self.data, workload=workload,
            reference=reference_of(kind, self.settings.reward), burst=self.settings.standbys.burst,
        )  # fmt: skip

    def bound(self, clip: Clip) -> float:
        """Sum of the counted windows' lower bounds (:func:`evaluation.bound.bounds.lower_bound`); seconds, then
        kept."""
        work = self.work(clip)
        warm_up, meter = self.settings.validation.warm_up, self.settings.meter

        def summed() -> float:
            physics = Physics(work.workload, work.requests.most_tokens)
            loads = list(windows(physics, work.requests, clip.window_s, work.seconds))[warm_up:]
            return sum(lower_bound(load, meter, work.seed).cost for load in loads)

        return self._kept(f"bound-{meter}-{warm_up}", work, summed)


def by_name(validation: Validation) -> Iterator[tuple[str, float]]:
    """Scalars for the learning curves."""
    yield "validation/cost", validation.cost
    yield "validation/violated", validation.violated
    yield "validation/excess", validation.excess
    patterns: Mapping[str, list[Judged]] = {
        pattern: [clip for clip in validation.clips if clip.pattern == pattern] for pattern in REPLAYED_PATTERNS
    }
    for pattern, clips in patterns.items():
        if not clips:
            continue
        part = Validation(tuple(clips))
        yield f"validation/{pattern}/cost", part.cost
        yield f"validation/{pattern}/violated", part.violated
