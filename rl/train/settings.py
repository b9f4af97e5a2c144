"""Everything a training run is made from, in addition to the code and the traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from autoscaler.checked import Checked, Flag, FromOne, FromZero, NotNegative, Positive, Rule, Share, from_table
from autoscaler.policy.bursting import BurstingSettings
from autoscaler.prices import Meter
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.settings import Arm, without_retired
from rl.reward import RewardSettings
from rl.train.errors import TrainingError
from rl.train.teacher import TeacherSettings
from rl.train.training_workloads import KINDS, VARIANTS, Kind
from simulation.workloads.custom import CustomPipeline, CustomPipelineError
from simulation.workloads.paper import PAPER_WORKLOADS
from simulation.workloads.worlds import World

STAGES = (("slow",), ("normal", "diurnal"), ("bursty",))
"""Patterns by what makes them hard."""
BY_METER = "busy_meter"
"""The learner's setting that a run's ``meter`` is: files of runs from before may name it."""


@dataclass(frozen=True)
class ValidationSettings(Checked):
    """Clips that an actor is judged on without noise; of the validation set."""

    title = "validation"
    error = TrainingError
    every: FromOne = 800
    """Windows of training between two."""
    seeds: FromOne = 1
    """Clips of each workload, pattern and rate."""
    seconds: Positive = 900.0
    mean_rps: tuple[Positive, ...] = (20.0,)
    """Rates of clips: as many of each workload and pattern at every one of these rates. At 20 the least share of a GPU
    serves nearly every window of the paper's workloads, at 250 it does not."""
    warm_up: FromZero = 4
    """Windows at the start that are not counted, as in evaluations."""
    violated: Share = 0.01
    """Share of windows over the SLO up to which an actor is chosen by its cost alone."""
    price: NotNegative = 5.0
    """What a further share of 1 costs, in C_ref: 1 % more windows are worth 5 % of it."""


@dataclass(frozen=True)
class TrainingSettings(Checked):
    """Settings of one run. The same settings, code and traces make the same actor."""

    title = "training"
    error = TrainingError
    workloads: Annotated[tuple[str, ...], Flag(hidden=True)] = PAPER_WORKLOADS
    seed: FromZero = 0
    """Seed of clips, networks and exploration."""
    arm: Arm = "full"
    """Networks (docs/agent.md)."""
    meter: Meter = "provisioned"
    """Cost that is rewarded."""
    windows: FromOne = 12_000
    """Windows planned; exploration and learning rates follow the part that is simulated."""
    lanes: FromOne = 4
    """Episodes of one pipeline side by side, so that decisions are taken in one pass."""
    variants: Annotated[tuple[str, ...], Flag(hidden=True)] = tuple(kind.name for kind in VARIANTS)
    """Further kinds of pipelines to train on (:mod:`rl.train.training_workloads`); not in validation."""
    pipelines: Annotated[tuple[CustomPipeline, ...], Flag(hidden=True)] = ()
    """Custom pipelines, next to ``workloads``, which may then be none."""
    episode_windows: Annotated[int, Field(ge=2)] = 40
    """Windows of an episode."""
    mean_rps: Annotated[tuple[Positive, Positive], Flag(hidden=True)] = (5.0, 40.0)
    """Lowest and highest mean rate of a clip."""
    world: World = "mixed"
    """Cluster of the paper's workloads and their variants; a custom pipeline runs on its own machine."""
    relative_slo: Annotated[float | None, Field(gt=1, lt=1000)] = None
    """SLO of these as so many times the requests' P95 with unlimited capacity."""
    standbys: Annotated[BurstingSettings, Flag(hidden=True)] = field(default_factory=BurstingSettings)
    """Standbys of every expert in all episodes, as of the table ``burst`` of a policy's settings; none by default."""
    updates: NotNegative = 0.5
    """Updates of the networks, for each window."""
    branches: FromZero = 3
    """Changed decisions of each window that are simulated in addition to the one that is taken, for the critic."""
    warm_start: FromZero = 1200
    """Windows that a teacher simulates at first, and that the actor then clones; 0: no warm start."""
    clone_updates: FromZero = 800
    """Updates of the actor alone that clone the teacher."""
    curriculum: Annotated[bool, Flag("--curriculum/--no-curriculum")] = True
    """Slow clips first, then normal and diurnal ones too, then all (a third of the exploration each)."""
    width: FromOne = 48
    """Numbers of an embedding."""
    hidden: FromOne = 64
    """Units of the hidden layers."""
    rank: FromOne = 32
    """Rank of the bilinear scores."""
    teacher: Annotated[TeacherSettings, Flag(hidden=True)] = field(default_factory=TeacherSettings)
    learner: Annotated[LearnerSettings, Flag(hidden=True)] = field(default_factory=LearnerSettings)
    validation: Annotated[ValidationSettings, Flag(hidden=True)] = field(default_factory=ValidationSettings)

    def rules(self) -> Iterable[Rule]:
        names = [pipeline.name for pipeline in self.pipelines]
        return (
            (
                "workloads",
                bool(self.judged) and set(self.workloads) <= set(KINDS),
                f"one or more of {', '.join(KINDS)}",
            ),
            ("pipelines", len({*names, *KINDS}) == len(names) + len(KINDS), "other names, each once"),
            ("variants", set(self.variants) <= set(KINDS), ", ".join(KINDS)),
            ("mean_rps", self.mean_rps[0] <= self.mean_rps[1], "lowest and highest"),
            ("meter", self.meter == "busy" or not self.learner.busy_meter, "busy, where learner.busy_meter is true"),
        )

    @property
    def judged(self) -> tuple[Kind, ...]:
        """What validation simulates."""
        return (*(self._in_world(name) for name in self.workloads if name in KINDS), *self.pipelines)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What is trained on."""
        return (*self.judged, *(self._in_world(name) for name in self.variants))

    def _in_world(self, name: str) -> Kind:
        return replace(KINDS[name], world=self.world, relative_slo=self.relative_slo)

    @property
    def learnt_by(self) -> LearnerSettings:
        """Those of the learner, whose cost is that of the run's meter."""
        return replace(self.learner, busy_meter=self.meter == "busy")

    @property
    def reward(self) -> RewardSettings:
        """Reward settings of episodes; the learner has a shape of its own beyond λ
        (:func:`rl.agent.ddpg.targets.penalties`)."""
        return RewardSettings(self.meter, slo_weight=self.learner.slo_weight)

    def patterns(self, done: float) -> tuple[str, ...]:
        """Patterns that clips are drawn from at ``done`` 0 to 1 of the run."""
        stage = int(len(STAGES) * done / self.learner.exploration) if self.curriculum else len(STAGES)
        return tuple(pattern for patterns in STAGES[: 1 + stage] for pattern in patterns)

    def as_json(self) -> dict[str, Any]:
        stored = super().as_json()
        del stored["learner"][BY_METER]
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TrainingSettings:
        """Raises TrainingError for a key or value that is not known."""
        table = {**stored, "learner": without_retired(stored.get("learner", {}))}
        table["learner"].pop(BY_METER, None)
        try:
            pipelines = tuple(CustomPipeline.from_json(pipeline) for pipeline in table.pop("pipelines", ()))
        except CustomPipelineError as error:
            raise TrainingError(str(error)) from error
        return from_table(cls, table, {"pipelines": pipelines})
