"""The learner's settings, with the reason for each default."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Credit = Literal["own", "return"]
Judge = Literal["window", "layer"]
Gradient = Literal["improvement", "straight-through"]


class LearnerError(ValueError):
    """Settings or a checkpoint that cannot be used; the message states which and what is allowed."""


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of the algorithm alone; what is trained on is :class:`rl.train.settings.TrainingSettings`."""

    batch_windows: int = 16
    """Windows of an update, all of one pipeline."""
    buffer_windows: int = 12_000
    actor_rate: float = 2e-4
    critic_rate: float = 1e-3
    rate_end: float = 0.1
    """Both rates fall linearly to this share of themselves."""
    gamma: float = 0.0
    """Discount between windows; inside a window it is 1. Windows touch each other by backlog and cold starts only."""
    tau: float = 0.01
    """Part of the networks that goes into their targets at each update."""
    judge: Judge = "window"
    """``window``: one critic of all layers' decisions together, which predicts the tail latency and knows the cost
    (:mod:`rl.agent.ddpg.window_critic`); ``layer``: Q of every layer step in view of the layers before it."""
    credit: Credit = "own"
    """Credit assignment of the layer critic. ``own``: a layer's return leaves out what the others cost, which is known
    and not its doing (a difference reward); ``return``: the plain return of Eq. (13)."""
    slo_weight: float = 60.0
    """Weight of an excess over λ (:func:`rl.agent.ddpg.targets.penalties`)."""
    gradient: Gradient = "improvement"
    """How the actor climbs the critic: towards the better of some changes of an expert, a layer or the whole window,
    with the window critic, or Eq. (14) with straight-through features."""
    alternatives: int = 6
    """Changes of each scope that an update compares."""
    policy_delay: int = 2
    """Updates of the critic for one of the actor."""
    busy_meter: bool = False
    """Whether cost counts while replicas work only, so that it is not known from the decisions alone."""
    guard: float = 0.93
    """Part of λ from which on an excess counts: keeps the share of windows over λ itself small."""
    clone_rate: float = 1e-3
    """Learning rate of the actor while it clones its teacher and nothing else."""
    clone_end: float = 1.0
    """Part of it that is left at the last update of the warm start; it falls evenly."""
    clone_weight: float = 0.0
    """Weight of the teacher's cross-entropy next to the policy gradient, at the start; falls to 0 with exploration."""
    gradient_norm: float = 1.0
    """Longest gradient of either network."""
    temperature: tuple[float, float] = (0.3, 0.05)
    """Temperature of the softmax that training decisions are drawn from: at the start, and once exploration is over."""
    random_share: tuple[float, float] = (0.03, 0.0)
    """Share of experts that get any valid configuration instead."""
    exploration: float = 0.6
    """Part of the planned windows in which both fall."""
    actor_from: int = 1000
    """Updates of the critic alone before the actor's first: an actor that follows a critic which has not seen cheap
    decisions fail goes there."""

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, bool, str], ...] = (
            ("batch_windows", self.batch_windows >= 1, "1 or more"),
            ("buffer_windows", self.buffer_windows >= self.batch_windows, "at least batch_windows"),
            ("actor_rate", 0 < self.actor_rate < 1, "above 0, below 1"),
            ("critic_rate", 0 < self.critic_rate < 1, "above 0, below 1"),
            ("clone_rate", 0 < self.clone_rate < 1, "above 0, below 1"),
            ("clone_end", 0 < self.clone_end <= 1, "above 0, at most 1"),
            ("rate_end", 0 < self.rate_end <= 1, "above 0, at most 1"),
            ("gamma", 0 <= self.gamma < 1, "0 to below 1"),
            ("tau", 0 < self.tau <= 1, "above 0, at most 1"),
            ("credit", self.credit in get_args(Credit), "own or return"),
            ("judge", self.judge in get_args(Judge), "window or layer"),
            ("gradient", self.gradient in get_args(Gradient), "improvement or straight-through"),
            (
                "gradient",
                self.gradient != "improvement" or self.judge == "window",
                "straight-through for judge layer",
            ),
            ("alternatives", self.alternatives >= 1, "1 or more"),
            ("policy_delay", self.policy_delay >= 1, "1 or more"),
            ("slo_weight", self.slo_weight > 0, "above 0"),
            ("guard", 0 < self.guard <= 1, "above 0, at most 1"),
            ("clone_weight", self.clone_weight >= 0, "0 or more"),
            ("gradient_norm", self.gradient_norm > 0, "above 0"),
            ("temperature", len(self.temperature) == 2 and min(self.temperature) >= 0, "two numbers from 0"),
            ("random_share", len(self.random_share) == 2 and min(self.random_share) >= 0, "two shares"),
            ("random_share", max(self.random_share) <= 1, "two shares"),
            ("exploration", 0 < self.exploration <= 1, "above 0, at most 1"),
            ("actor_from", self.actor_from >= 0, "0 or more"),
        )
        for name, holds, allowed in rules:
            if not holds:
                raise LearnerError(f"learner: {name} is {getattr(self, name)!r}; allowed: {allowed}")

    def explored(self, progress: float) -> tuple[float, float]:
        """(temperature, share of random experts) at ``progress`` 0 to 1 of training.

        The temperature falls geometrically, as what it does hangs on its ratio to the scores.
        """
        part = min(1.0, max(0.0, progress) / self.exploration)
        (hot, cold), (many, few) = self.temperature, self.random_share
        temperature = hot * (cold / hot) ** part if hot and cold else hot + (cold - hot) * part
        return temperature, many + (few - many) * part

    def as_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> LearnerSettings:
        """Raises LearnerError for keys or values that are not known."""
        names = {field.name for field in fields(cls)}
        wrong = sorted(set(stored) - names)
        if wrong:
            raise LearnerError(f"learner: {wrong[0]!r} is not known; the settings are {', '.join(sorted(names))}")
        made: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
        }
        try:
            return cls(**made)
        except TypeError as error:
            raise LearnerError(f"learner: a setting has the wrong type ({error})") from error
