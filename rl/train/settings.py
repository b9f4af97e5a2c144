"""Everything a training run is made from, in addition to the code and the traces."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from autoscaler.prices import Meter
from rl.agent.ddpg.settings import LearnerError, LearnerSettings
from rl.agent.settings import ARMS
from rl.reward import RewardSettings
from rl.train.errors import TrainingError
from rl.train.teacher import TeacherSettings
from rl.train.training_workloads import KINDS, VARIANTS, Kind
from simulation.workloads.custom import CustomPipeline, CustomPipelineError
from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS


@dataclass(frozen=True)
class ValidationSettings:
    """Clips that an actor is judged on without noise; of the validation set."""

    every: int = 800
    """Windows of training between two."""
    seeds: int = 1
    """Clips of each workload, pattern and rate."""
    seconds: float = 900.0
    mean_rps: tuple[float, ...] = (20.0,)
    """Rates of clips: as many of each workload and pattern at every one of these rates. At 20 the least share of a GPU
    serves nearly every window of the paper's workloads, at 250 it does not."""
    warm_up: int = 4
    """Windows at the start that are not counted, as in evaluations."""
    violated: float = 0.01
    """Share of windows over the SLO up to which an actor is chosen by its cost alone."""
    price: float = 5.0
    """What a further share of 1 costs, in C_ref: 1 % more windows are worth 5 % of it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean_rps", tuple(self.mean_rps))  # a list, where it was stored


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of one run. The same settings, code and traces make the same actor."""

    workloads: tuple[str, ...] = PAPER_WORKLOADS
    seed: int = 0
    arm: str = "full"
    meter: Meter = "provisioned"
    windows: int = 12_000
    """Planned; exploration and learning rates follow the part that is simulated."""
    lanes: int = 4
    """Episodes of one pipeline side by side, so that decisions are taken in one pass."""
    variants: tuple[str, ...] = tuple(kind.name for kind in VARIANTS)
    """Further kinds of pipelines to train on (:mod:`rl.train.training_workloads`); not in validation."""
    pipelines: tuple[CustomPipeline, ...] = ()
    """Custom pipelines, next to ``workloads``, which may then be none."""
    episode_windows: int = 40
    mean_rps: tuple[float, float] = (5.0, 40.0)
    updates: float = 0.5
    """Updates of the networks, for each window."""
    branches: int = 3
    """Changed decisions of each window that are simulated in addition to the one that is taken, for the critic."""
    warm_start: int = 1200
    """Windows that a teacher simulates at first, and that the actor then clones; 0: no warm start."""
    clone_updates: int = 800
    curriculum: bool = True
    """Slow clips first, then normal ones too, then all (a third of the exploration each)."""
    width: int = 48
    hidden: int = 64
    rank: int = 32
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        unknown, names = sorted(set(self.workloads) - set(KINDS)), [pipeline.name for pipeline in self.pipelines]
        rules: tuple[tuple[str, object, bool, str], ...] = (
            ("workloads", unknown or self.workloads, bool(self.judged) and not unknown, ", ".join(KINDS)),
            ("pipelines", names, len({*names, *KINDS}) == len(names) + len(KINDS), "other names, each once"),
            ("seed", self.seed, self.seed >= 0, "0 or more"),
            ("arm", self.arm, self.arm in ARMS, ", ".join(ARMS)),
            ("windows", self.windows, self.windows >= 1, "1 or more"),
            ("lanes", self.lanes, self.lanes >= 1, "1 or more"),
            ("variants", self.variants, set(self.variants) <= set(KINDS), ", ".join(KINDS)),
            ("episode_windows", self.episode_windows, self.episode_windows >= 2, "2 or more"),
            ("mean_rps", self.mean_rps, 0 < self.mean_rps[0] <= self.mean_rps[-1], "lowest and highest, above 0"),
            ("updates", self.updates, self.updates >= 0, "0 or more"),
            ("branches", self.branches, self.branches >= 0, "0 or more"),
            ("warm_start", self.warm_start, self.warm_start >= 0, "0 or more"),
            ("clone_updates", self.clone_updates, self.clone_updates >= 0, "0 or more"),
        )
        for name, value, holds, allowed in rules:
            if not holds:
                raise TrainingError(f"training: {name} is {value!r}; allowed: {allowed}")

    @property
    def judged(self) -> tuple[Kind, ...]:
        """What validation simulates."""
        return (*(KINDS[name] for name in self.workloads if name in KINDS), *self.pipelines)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What is trained on."""
        return (*self.judged, *(KINDS[name] for name in self.variants))

    @property
    def reward(self) -> RewardSettings:
        """Reward settings of episodes; the learner has a shape of its own beyond λ
        (:func:`rl.agent.ddpg.targets.penalties`)."""
        return RewardSettings(self.meter, slo_weight=self.learner.slo_weight)

    def patterns(self, done: float) -> tuple[str, ...]:
        """Patterns that clips are drawn from at ``done`` 0 to 1 of the run."""
        slow_first = tuple(sorted(PATTERNS, key=("slow", "normal", "bursty").index))
        stage = int(3 * done / self.learner.exploration) if self.curriculum else 2
        return slow_first[: 1 + min(2, stage)]

    def as_json(self) -> dict[str, Any]:
        table: dict[str, Any] = _listed(asdict(self))
        return table

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TrainingSettings:
        """Raises TrainingError for a key or value that is not known."""
        parts = {"teacher": TeacherSettings, "validation": ValidationSettings}
        made: dict[str, Any] = {}
        try:
            for name, value in stored.items():
                if name not in {one.name for one in fields(cls)}:
                    raise TrainingError(f"training: {name!r} is not known")
                if name == "learner":
                    made[name] = LearnerSettings.from_json(value)
                elif name == "pipelines":
                    made[name] = tuple(CustomPipeline.from_json(one) for one in value)
                elif name in parts:
                    made[name] = parts[name](**value)
                else:
                    made[name] = tuple(value) if isinstance(value, list) else value
            return cls(**made)
        except CustomPipelineError as error:
            raise TrainingError(str(error)) from error
        except (TypeError, LearnerError) as error:
            raise TrainingError(f"training: a stored setting does not fit this program ({error})") from error


def _listed(value: Any) -> Any:
    """As JSON gives it back: lists for tuples."""
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value
