"""Training on the simulator, with the controller's own loop: the learner is a policy that is simulated.

Every window it sees what its last action led to, stores that, updates, and acts again. Rewards as FaaSConf's: all
agents share minus the price of the whole deployment, minus a fixed amount where the latency target was missed. Hours
are of the training set; which weights are kept is decided on validation hours, by the rule of the other policies'
sweep.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch

from autoscaler.checked import Checked, Flag, FromOne, FromZero, NotNegative
from autoscaler.contract import Configuration, Memory, Observation, Proposal
from autoscaler.decision.limits import LimitSettings, memory_need
from autoscaler.prices import PriceSheet
from evaluation.comparison.episode import prepare
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import limits_of
from evaluation.tuning.deployments import Deployment
from evaluation.tuning.outcomes import MOST_VIOLATED, p95s, tail_s
from evaluation.tuning.searches import profile
from rl.faasconf.actions import OUTPUTS, configuration, outputs_of
from rl.faasconf.features import FEATURES
from rl.faasconf.learner import Buffer, Learner, LearnerSettings
from rl.faasconf.policy import FaasconfPolicy, Pipeline
from rl.faasconf.safe import REPLAY_NOISE, History, noisy
from rl.train.run import traces_sha256
from simulation.arrays import Singles
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.simulation import Simulation

PRICE_WEIGHT = 0.457
"""Weight of a deployment at the history's mean price: 0.1 × 4.574, FaaSConf's own weight and mean."""


@dataclass(frozen=True)
class TrainingSettings(Checked):
    """How an agent is trained for one workload."""

    episodes: FromOne = 24
    """Episodes after those that fill the buffer."""
    filling: FromZero = 2
    """Episodes that simulate the history alone, before anything is learnt."""
    copies: FromOne = 20
    """Noisy ones of each hour's good action that make up the history with it."""
    offline_updates: FromZero = 100
    """Updates on what these left in the buffer."""
    updates: FromOne = 2
    """Updates a window."""
    train_seeds: FromOne = 2
    """Hours of each pattern; they are gone through again and again."""
    validation_seeds: FromOne = 1
    """Validation hours of each pattern."""
    validate_every: FromOne = 4
    """Episodes between two validations."""
    violation: NotNegative = 0.5
    """Taken off the reward where a window's P95 is above the SLO; FaaSConf's."""
    noise: NotNegative = 0.1
    """Standard deviation of what is added to outputs at first; falls evenly to a fifth of it."""
    capacity: FromOne = 4000
    """Transitions kept."""
    seed: FromZero = 0
    """Seed of networks, exploration and hours."""
    learner: Annotated[LearnerSettings, Flag(hidden=True)] = field(default_factory=LearnerSettings)


@dataclass(frozen=True)
class Last:
    """What the learner remembers from one window to the next."""

    states: Singles
    outputs: Singles
    price: float
    refused: tuple[Singles, float] | None = None
    """Outputs and price of the action that this one replaced."""


@dataclass(frozen=True)
class Judged:
    """Greedy weights on the validation hours."""

    episode: int
    cost: float
    """Provisioned, experts, summed over the hours."""
    violated_windows: int
    judged_windows: int
    reward: float
    """Mean of the training windows since the last judgement."""
    replayed: float
    """Share of these windows whose action safe exploration replaced."""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Lower is better, by the rule of the sweep."""
        share = self.violated_windows / self.judged_windows if self.judged_windows else 1.0
        keeps = share <= MOST_VIOLATED
        return not keeps, self.cost if keeps else share, self.cost


def reward_of(observation: Observation, price: float, mean_price: float, slo_s: float, violation: float) -> float:
    """Reward of the window that has ended. Nothing answered while requests are in flight counts as missed."""
    p95_s = observation.latency_p95_s
    missed = p95_s > slo_s if p95_s is not None else bool(observation.in_flight)
    return -PRICE_WEIGHT * price / mean_price - (violation if missed else 0.0)


def refused_reward(price: float, mean_price: float, violation: float) -> float:
    """Reward of an action that was not tried. Its price is known all the same, and the rest is the best that it could
    have come to where it cost too much, the SLO missed where it cost too little."""
    return -PRICE_WEIGHT * price / mean_price - (violation if price < mean_price else 0.0)


def price_of(chosen: dict[str, Configuration], prices: PriceSheet) -> float:
    """Per second, all replicas of all experts."""
    return sum(configuration.replicas * prices.unit_per_s(configuration) for configuration in chosen.values())


class LearningPolicy:
    """Acts, remembers and learns. Its ``memory`` is the action of the last window."""

    name = "faasconf-learning"

    def __init__(self, trainer: Trainer, pipeline: Pipeline, noise: float, learns: bool) -> None:
        self._trainer = trainer
        self._pipeline = pipeline
        self._noise = noise
        self._learns = learns

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        trainer, pipeline = self._trainer, self._pipeline
        pipeline_states = pipeline.states(observation)
        if pipeline_states is None:
            return pipeline.held()
        if isinstance(memory, Last):
            trainer.remember(memory, observation, pipeline_states)
        if self._learns:
            trainer.update(trainer.settings.updates)
        last, chosen = self._act(pipeline_states, observation)
        return pipeline.desired(chosen, "exploring", last)

    def _act(self, states: Singles, observation: Observation) -> tuple[Last, dict[str, Configuration]]:
        trainer, pipeline, refused = self._trainer, self._pipeline, None
        outputs = trainer.history.replay(trainer.rng)
        if self._learns:
            outputs = noisy(trainer.learner.agent.outputs(states, pipeline.adjacency), self._noise, trainer.rng)
        chosen = pipeline.configurations(outputs, observation)
        price = price_of(chosen, trainer.prices)
        if self._learns and not trainer.history.is_safe(price):
            trainer.replayed += 1
            refused = outputs, price
            outputs = trainer.history.replay(trainer.rng)
            chosen = pipeline.configurations(outputs, observation)
            price = price_of(chosen, trainer.prices)
        return Last(states, outputs, price, refused), chosen


class Trainer:
    """Training of one workload, episode by episode; all that changes is in its attributes. Raises EvaluationError.

    ``grid`` names the one workload, the patterns and the length of an episode.
    """

    def __init__(self, grid: Grid, settings: TrainingSettings) -> None:
        self.settings = settings
        self._train = replace(grid, split="train", seeds=tuple(range(settings.train_seeds)))
        self._validation = replace(grid, split="validation", seeds=tuple(range(settings.validation_seeds)))
        self._hours = _good_deployments(self._train)
        self._judged_on = _good_deployments(self._validation)
        if not self._hours or not self._judged_on:
            raise EvaluationError(f"{grid.workloads[0]}: the SLO can be kept in no hour to train or to judge on")
        workload = prepare(self._train, next(iter(self._hours))).workload
        self.prices, self._slo_s = workload.prices, workload.slo_s
        self.pipeline = Pipeline(workload.topology, limits_of(workload), workload.slo_s)
        self.rng = np.random.default_rng(settings.seed)
        self.history = self._good_actions(limits_of(workload))
        features, outputs = len(FEATURES), len(OUTPUTS)
        self.learner = Learner(self.pipeline.adjacency, features, outputs, settings.learner, settings.seed)
        self.learner.begin_at(torch.from_numpy(np.median(self.history.actions, axis=(0, 1))))
        self.buffer = Buffer(settings.capacity, len(self.pipeline.agents), features, outputs)
        self.episode = 0
        """The next one."""
        self.rewards: list[float] = []
        """Since the last judgement."""
        self.replayed = 0

    @property
    def made_of(self) -> dict[str, Any]:
        """JSON of the settings and of the hours that are trained on, with the traces that they are of."""
        grid = self._train
        hours = {"patterns": list(grid.patterns), "seconds": grid.seconds, "mean_rps": grid.mean_rps}
        return asdict(self.settings) | {"hours": hours, "traces_sha256": traces_sha256(grid.data)}

    @property
    def episodes(self) -> int:
        return self.settings.filling + self.settings.episodes

    @property
    def is_due(self) -> bool:
        """Whether the weights are to be judged now."""
        learnt = self.episode - self.settings.filling
        return learnt >= 0 and (learnt % self.settings.validate_every == 0 or self.episode == self.episodes)

    def step(self) -> None:
        """Simulate one episode; after the last of those that fill the buffer, learn from it."""
        hours = list(self._hours)
        order = np.random.default_rng(self.settings.seed).permutation(len(hours))
        learns = self.episode >= self.settings.filling
        done = max(0, self.episode - self.settings.filling) / max(1, self.settings.episodes)
        policy = LearningPolicy(self, self.pipeline, self.settings.noise * (1 - 0.8 * done), learns)
        group = hours[order[self.episode % len(order)]]
        self._simulate(self._train, group, self._hours[group], policy, self.settings.seed + self.episode)
        self.episode += 1
        if self.episode == self.settings.filling:
            states = self.buffer.arrays["states"][: len(self.buffer)]
            self.learner.scale_to(torch.from_numpy(states.copy()))
            self.update(self.settings.offline_updates)

    def remember(self, last: Last, observation: Observation, states: Singles) -> None:
        """What the last action led to, and what is known of the one that it replaced: a critic that never heard of what
        the actor proposes would lead it ever farther away."""
        mean_price, violation = self.history.mean_price, self.settings.violation
        reward = reward_of(observation, last.price, mean_price, self._slo_s, violation)
        self.rewards.append(reward)
        self.buffer.add(last.states, last.outputs, reward, states)
        if last.refused is not None:
            outputs, price = last.refused
            self.buffer.add(last.states, outputs, refused_reward(price, mean_price, violation), states)

    def update(self, count: int) -> None:
        """Learn from the buffer ``count`` times, where it holds anything."""
        for _ in range(count if len(self.buffer) else 0):
            self.learner.update(self.buffer.sample(self.settings.learner.batch, self.rng))

    def judge(self) -> Judged:
        """The present weights, without exploration, on the validation hours."""
        policy, cost, tails = FaasconfPolicy(self.learner.agent, self.pipeline), 0.0, list[float]()
        experts = {node.id for node in self.pipeline.agents}
        for group, start in self._judged_on.items():
            steps = self._simulate(self._validation, group, start, policy, group.seed)
            counted = steps[self._validation.warm_up_windows :]
            costs = [step.report.cost_by_node[node].provisioned for step in counted for node in experts]
            cost += sum(layer_cost for layer_cost in costs if layer_cost is not None)
            tails += p95s([step.window for step in counted])
        violated = sum(value > self._slo_s for value in tails)
        windows = max(1, len(self.rewards))
        mean = float(np.mean(self.rewards or [0.0]))
        layer_cost = Judged(self.episode, cost, violated, len(tails), mean, self.replayed / windows)
        self.rewards, self.replayed = [], 0
        return layer_cost

    def _simulate(
        self, grid: Grid, group: Group, start: Deployment, policy: FaasconfPolicy | LearningPolicy, seed: int
    ) -> list[Step]:
        """An hour from ``start`` on."""
        work = prepare(grid, group)
        configurations = {**work.workload.initial(next(iter(start.values()))), **start}
        simulation = Simulation(work.workload, work.requests, configurations, seed=seed)
        limits = limits_of(work.workload)
        return simulate_policy(simulation, policy, limits, window_s=grid.window_s, until_s=work.arrivals.seconds)

    def _good_actions(self, limits: LimitSettings) -> History:
        """In place of FaaSConf's library of good actions: each training hour's good deployment, and noisy copies."""
        space, actions, prices = self.pipeline.space, [], []
        needs = [memory_need([node], [], limits) for node in self.pipeline.agents]
        for best in self._hours.values():
            good = np.stack([outputs_of(best[node.function], space) for node in self.pipeline.agents])
            for deviation in (0.0, *[REPLAY_NOISE] * self.settings.copies):
                actions.append(noisy(good, deviation, self.rng))
                rows = zip(self.pipeline.agents, actions[-1], needs, strict=True)
                chosen = {node.function: configuration(row, space, need) for node, row, need in rows if need}
                prices.append(price_of(chosen, self.prices))
        return History(np.stack(actions), np.array(prices))


def _good_deployments(grid: Grid) -> dict[Group, Deployment]:
    """For each hour, of the separable optima of its stretches the cheapest that keeps the SLO when simulated; hours in
    which none does are left out."""
    deployments = {}
    for group in grid.groups():
        hour = profile(grid, group)
        slo_s = hour.replay.workload.slo_s
        outcomes = [(anchor, *hour.replay.static(anchor)) for anchor in hour.deployments.anchors]
        keeping = [(cost, number) for number, (_, cost, tails) in enumerate(outcomes) if tail_s(tails) <= slo_s]
        if keeping:
            deployments[group] = outcomes[min(keeping)[1]][0]
    return deployments
