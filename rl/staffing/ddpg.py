"""DDPG on the staffing environment, by stable-baselines3: its loop, its replay, its checkpoints.

Three things are ours. The critic learns what the environment reports in parts (the cost of every expert, and P95
against λ) and not their sum alone, so that of 48 experts each has a target of its own. Exploration noise is partly the
same for all experts: what only all of them together bring about would be met by chance never. The discount is 0: a
window's decision is in force within seconds and the next one may undo it, so Q is the window's own reward, and there
are no target networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DDPG
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.contract import Batch, Space, State
from rl.agent.settings import NetworkSettings
from rl.features.ranges import Ranges
from rl.staffing.action import Actions
from rl.staffing.features import FEATURES, NODES, PIPELINE
from rl.staffing.networks import NUMBERS, StaffingActor, StaffingCritic
from rl.staffing.risk import RiskSettings, risk

Observations = dict[str, Tensor]


def batch_of(space: Space, observed: Observations) -> Batch:
    """States [B] from the environment's observations; what only Φ's masks need is not there."""
    layers, width = space.mask.shape
    states = len(observed["pipeline"])
    none = torch.zeros(states, layers, width, 4, dtype=torch.long)
    return Batch(
        space,
        observed["segments"].view(states, layers + 1, len(NODES)),
        observed["experts"].view(states, layers, width, len(NODES)),
        observed["pipeline"],
        none,
        none,
    )


class Drawn(NamedTuple):
    """A minibatch."""

    observations: Observations
    actions: Tensor
    """[B, n, K, 8]."""
    costs: Tensor
    """[B, n, K]."""
    risks: Tensor
    """[B]."""


class OutcomeBuffer(DictReplayBuffer):
    """The library's replay, with what the environment reports of each window: costs and P95 over λ."""

    def __init__(self, *args: Any, experts: tuple[int, int], risks: RiskSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.experts, self._settings = experts, risks
        self.costs = np.zeros((self.buffer_size, self.n_envs, *experts), dtype=np.float32)
        self.risks = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)

    def add(self, *args: Any, **kwargs: Any) -> None:
        infos = args[5] if len(args) > 5 else kwargs["infos"]
        self.costs[self.pos] = [info["costs"] for info in infos]
        self.risks[self.pos] = [risk(info["p95"], self._settings) for info in infos]
        super().add(*args, **kwargs)

    def held(self) -> dict[str, Tensor]:
        """What is learnt from, by name: views [windows, environments, ...]."""
        return {name: torch.from_numpy(rows[: self.size()]) for name, rows in self._arrays().items()}

    def restore(self, held: Mapping[str, Tensor], following: int) -> None:
        """Put back what :meth:`held` gave [windows, environments, ...]; ``following``: place of the next window.
        Raises KeyError and ValueError for windows of other sizes."""
        for name, rows in self._arrays().items():
            rows[: len(held[name])] = held[name].numpy()
        self.pos, self.full = following, len(held["risks"]) == self.buffer_size

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.observations, "actions": self.actions, "costs": self.costs, "risks": self.risks}

    def ranges(self) -> Ranges:
        """Ranges of the features of all windows held."""
        layers, width = self.experts
        none = np.zeros((layers, width, 4), dtype=np.int16)
        rows = {
            name: rows_of[: self.size()].reshape(-1, rows_of.shape[-1]) for name, rows_of in self.observations.items()
        }
        states = (
            State(segments.reshape(layers + 1, -1), experts.reshape(layers, width, -1), pipeline, none, none)
            for segments, experts, pipeline in zip(rows["segments"], rows["experts"], rows["pipeline"], strict=True)
        )
        return Ranges.of(states, FEATURES)

    def drawn(self, count: int, rng: np.random.Generator) -> Drawn:
        """``count`` windows, each of those held equally likely."""
        rows = rng.integers(0, self.size(), count)
        envs = rng.integers(0, self.n_envs, count)
        observed = {name: torch.from_numpy(rows_of[rows, envs]) for name, rows_of in self.observations.items()}
        actions = torch.from_numpy(self.actions[rows, envs]).view(count, *self.experts, NUMBERS + 1)[..., :-1]
        parts = (torch.from_numpy(values[rows, envs]) for values in (self.costs, self.risks))
        return Drawn(observed, actions, *parts)


class SharedNoise(ActionNoise):
    """Gaussian, partly the same for all experts, partly for those of a layer, partly each one's own; none on
    priorities. ``layers``, ``width``: of the action; the deviations are in the action's unit."""

    def __init__(
        self, layers: int, width: int, deviations: tuple[float, float, float], seed: int | tuple[int, ...]
    ) -> None:
        super().__init__()
        self._shape, self._deviations, self._rng = (layers, width), deviations, np.random.default_rng(seed)
        self.share = 1.0
        """Share of the deviations; lowered as a run goes on."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedNoise:
        """With a stream of its own: stable-baselines3 copies the noise for each environment, and the same numbers in
        all of them would explore no more than one."""
        other = copy(self)
        other._rng = self._rng.spawn(1)[0]
        return other

    def __call__(self) -> NDArray[np.float32]:
        layers, width = self._shape
        whole, layer, single = (self.share * deviation for deviation in self._deviations)
        noise = np.zeros((layers, width, NUMBERS + 1), dtype=np.float32)
        noise[..., :-1] = (
            self._rng.normal(0, whole, NUMBERS)
            + self._rng.normal(0, layer, (layers, 1, NUMBERS))
            + self._rng.normal(0, single, (layers, width, NUMBERS))
        )
        return noise.ravel()


class ActorOfPolicy(Actor):
    """The actor as the library calls it: actions and priorities of all experts, flat."""

    def __init__(self, observed: Any, action: Any, space: Space, networks: NetworkSettings, start: Actions) -> None:
        super().__init__(observed, action, [], nn.Identity(), 1)
        self.mu = nn.Sequential()
        self.space, self.network = space, StaffingActor(networks, start)

    def forward(self, obs: Observations) -> Tensor:  # type: ignore[override]
        staffed = self.network(batch_of(self.space, obs))
        return torch.cat((staffed.actions, staffed.priority.unsqueeze(-1) - 1), -1).flatten(1)


class CriticOfPolicy(ContinuousCritic):
    """Two critics, each of two parts that :meth:`StaffingDDPG.learn_outcomes` teaches; as one number each is their
    negative sum."""

    def __init__(self, observed: Any, action: Any, space: Space, networks: NetworkSettings) -> None:
        super().__init__(observed, action, [], nn.Identity(), 1, n_critics=2)  # type: ignore[arg-type]
        self.space, self.qf0, self.qf1 = space, StaffingCritic(networks), StaffingCritic(networks)
        self.q_networks = [self.qf0, self.qf1]

    @property
    def both(self) -> tuple[StaffingCritic, StaffingCritic]:
        """The two, each of a state and actions."""
        return self.qf0, self.qf1

    def forward(self, obs: Observations, actions: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        layers, width = self.space.mask.shape
        numbers = actions.view(len(actions), layers, width, NUMBERS + 1)[..., :-1]
        batch = batch_of(self.space, obs)
        judged = [critic(batch, numbers) for critic in self.both]
        return tuple(-(one.costs.sum((1, 2)) + one.risk).unsqueeze(-1) for one in judged)


class StaffingPolicy(TD3Policy):
    """The library's pair of networks."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        space: Space,
        networks: NetworkSettings,
        start: Actions,
        **kwargs: Any,
    ) -> None:
        self.space, self.networks, self.start = space, networks, start
        super().__init__(observation_space, action_space, lr_schedule, net_arch=[], **kwargs)

    def make_actor(self, features_extractor: object = None) -> ActorOfPolicy:
        return ActorOfPolicy(self.observation_space, self.action_space, self.space, self.networks, self.start)

    def make_critic(self, features_extractor: object = None) -> CriticOfPolicy:
        return CriticOfPolicy(self.observation_space, self.action_space, self.space, self.networks)


COST = 10.0
"""Weight of the squared errors of experts' costs, which are small numbers, next to that of the risk."""


class StaffingDDPG(DDPG):
    """Deterministic policy gradient through a critic that learns costs and risk apart."""

    actor_after = 600
    """Updates of the critic alone at first: an actor that follows an untaught critic leaves the start for nothing."""
    clip = 10.0
    trust = 1.0
    """Cost, in C_ref, of leaving what the actor began with by one in mean square. Without it the actor ran within a few
    hundred updates to the ends of all numbers, where the critic knows nothing and tanh has no gradient."""
    anchor: StaffingActor | None = None
    """What the actor began with: none before :meth:`anchored`."""

    def anchored(self) -> None:
        """Take the actor as it is for what it may not leave far."""
        actor = self.actor
        assert isinstance(actor, ActorOfPolicy)
        self.anchor = deepcopy(actor.network).requires_grad_(False).eval()

    def expected(self, batch: Batch, actions: Tensor) -> Tensor:
        """[B]: cost of ``actions`` [B, n, K, 8], and the larger risk of two critics'. What one has not met it judges by
        chance, and an actor goes where that is least."""
        one, other = (critic(batch, actions) for critic in self.judges.both)
        expected: Tensor = 0.5 * (one.costs + other.costs).sum((1, 2)) + torch.maximum(one.risk, other.risk)
        return expected

    def learn_outcomes(
        self, updates: int, batch_size: int, look: Callable[[], object] = lambda: None
    ) -> dict[str, float]:
        """Updates of both critics alone; returns the mean losses of the last tenth of them. ``look`` is called before
        each; what it raises ends them.

        Risk is learnt by its mean square error: windows over λ are few, and an error that grows by its size alone would
        have the critic learn the median, which is none at all.
        """
        assert isinstance(self.replay_buffer, OutcomeBuffer)
        rng = np.random.default_rng((self.seed or 0, self._n_updates, 1))
        losses: list[tuple[float, float]] = []
        for _ in range(updates):
            look()
            parts = [self._losses(critic, self.replay_buffer.drawn(batch_size, rng)) for critic in self.judges.both]
            of_cost, of_risk = (torch.stack(part).mean() for part in zip(*parts, strict=True))
            self._step(self.critic, COST * of_cost + of_risk)
            losses.append((float(of_cost.detach()), float(of_risk.detach())))
        last = np.array(losses[-max(1, updates // 10) :]).mean(0) if losses else np.zeros(2)
        return {"cost": float(last[0]), "risk": float(last[1])}

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        assert isinstance(self.replay_buffer, OutcomeBuffer)
        self.policy.set_training_mode(True)
        rng = np.random.default_rng((self.seed or 0, self._n_updates))
        actor, losses = self.actor, list[float]()
        assert isinstance(actor, ActorOfPolicy)
        for _ in range(gradient_steps):
            for name, loss in self.learn_outcomes(1, batch_size).items():
                self.logger.record_mean(f"train/{name}", loss)
            self._n_updates += 1
            if self._n_updates <= self.actor_after:
                continue
            batch = batch_of(actor.space, self.replay_buffer.drawn(batch_size, rng).observations)
            staffed = actor.network(batch)
            of_actor = self.expected(batch, staffed.actions).mean()
            if self.anchor is not None:
                of_actor = of_actor + self.trust * functional.mse_loss(staffed.actions, self.anchor(batch).actions)
            self._step(actor, of_actor)
            losses.append(float(of_actor.detach()))
        if losses:
            self.logger.record("train/actor", float(np.mean(losses)))

    @property
    def judges(self) -> CriticOfPolicy:
        """The pair of critics."""
        assert isinstance(self.critic, CriticOfPolicy)
        return self.critic

    def _losses(self, critic: StaffingCritic, drawn: Drawn) -> tuple[Tensor, Tensor]:
        judged = critic(batch_of(self.judges.space, drawn.observations), drawn.actions)
        of_cost = functional.mse_loss(judged.costs, drawn.costs) * judged.costs[0].numel()
        return of_cost, functional.mse_loss(judged.risk, drawn.risks)

    def _step(self, network: Any, loss: Tensor) -> None:
        network.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), self.clip)
        network.optimizer.step()


def networks_of(width: int, hidden: int) -> NetworkSettings:
    """Sizes of actor and critic for states as they are encoded now."""
    return NetworkSettings(len(NODES), len(PIPELINE), width=width, hidden=hidden)
