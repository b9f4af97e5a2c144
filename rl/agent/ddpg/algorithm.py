"""DDPG over whole windows: the library's algorithm with our update, and a checkpoint without a pickle.

Where the update differs from the paper's (section 4.3), and why:

* One transition is a window with the decisions of all its layers; the paper's is one layer's step. A window has one
  P95, so a single layer's step has no outcome of its own to learn from (:mod:`rl.agent.ddpg.buffer`).
* The critic learns the distribution of P95 over λ and knows the cost, instead of learning the sum in Eq. (13)
  (:mod:`rl.agent.ddpg.window_critic`). :mod:`rl.paper_agent` has the paper's Q(s_i, a_i) with a TD loss, and Eq. (14).
* The actor climbs differences between configurations instead of the slope of Eq. (14) (:meth:`PipelineDDPG._improved`).
* The discount between windows is 0 by default: a window's decisions reach the next only by backlog and cold starts.
"""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError  # named to be refused; nothing here unpickles
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG
from stable_baselines3.common.save_util import load_from_zip_file, save_to_zip_file
from stable_baselines3.common.utils import polyak_update, update_learning_rate
from torch import Tensor, nn

from autoscaler.checked import from_table
from rl.agent.actor import spread, there
from rl.agent.configuration_table import features_of
from rl.agent.contract import CONFIGURATION_FEATURES
from rl.agent.ddpg.buffer import WindowBuffer, WindowSamples
from rl.agent.ddpg.checkpoint import checked
from rl.agent.ddpg.exploration_moves import SCOPES, moves
from rl.agent.ddpg.improvement import NOTABLE, judged, pulls
from rl.agent.ddpg.pointer_loss import pointer_loss
from rl.agent.ddpg.policy import PipelineActor, PipelineCritic, PipelinePolicy
from rl.agent.ddpg.settings import LearnerError, LearnerSettings
from rl.agent.encoder import padded
from rl.agent.settings import NetworkSettings, without_retired

STORED = ("num_timesteps", "_n_updates", "_current_progress_remaining", "seed")
"""Attributes of the library's that a checkpoint holds next to the settings."""
CLONING = 2**40
"""Draws of a warm start are numbered from here, so that they are not those of updates."""


class PipelineDDPG(DDPG):
    """``num_timesteps`` counts windows. Windows come in through ``replay_buffer.add``; there is no library environment,
    since pipelines of different sizes learn together."""

    policy: PipelinePolicy
    replay_buffer: WindowBuffer
    actor: PipelineActor
    actor_target: PipelineActor
    critic: PipelineCritic
    critic_target: PipelineCritic

    def __init__(self, networks: NetworkSettings, learner: LearnerSettings | None = None, *, seed: int = 0) -> None:
        self.networks = networks
        self.learner = learner or LearnerSettings()
        super().__init__(
            PipelinePolicy,
            None,  # type: ignore[arg-type]
            learning_rate=self.learner.actor_rate,
            buffer_size=self.learner.buffer_windows,
            batch_size=self.learner.batch_windows,
            tau=self.learner.tau,
            gamma=self.learner.gamma,
            replay_buffer_class=WindowBuffer,
            replay_buffer_kwargs={"seed": seed},
            policy_kwargs={"networks": networks, "learner": self.learner},
            seed=seed,
            device="cpu",
            _init_setup_model=False,
        )
        self.n_envs = 1
        self.observation_space = spaces.Box(-np.inf, np.inf, (networks.node_features,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (len(CONFIGURATION_FEATURES),), np.float32)
        self._setup_model()

    def learn(self, *args: Any, **kwargs: Any) -> PipelineDDPG:
        """Raises LearnerError: windows of different pipelines are brought by :mod:`rl.train`, which then calls
        train."""
        raise LearnerError("this agent has no environment of its own to step; use rl.train (`smoe lab train`)")

    def progress(self, done: float) -> None:
        """Say how much of the training is over, 0 to 1; learning rates and exploration follow."""
        self._current_progress_remaining = 1.0 - min(1.0, max(0.0, done))

    @property
    def done(self) -> float:
        return 1.0 - self._current_progress_remaining

    def train(self, gradient_steps: int, batch_size: int = 0) -> None:
        """``gradient_steps`` updates of the critic and, once it has learnt a little, of the actor and all targets."""
        settings, losses = self.learner, dict[str, list[float]]()
        batch_size = batch_size or self.batch_size
        self.policy.set_training_mode(True)
        falling = settings.rate_end + (1 - settings.rate_end) * self._current_progress_remaining
        update_learning_rate(self.actor.optimizer, settings.actor_rate * falling)
        update_learning_rate(self.critic.optimizer, settings.critic_rate * falling)
        for _ in range(gradient_steps):
            self._n_updates += 1
            # The draw is numbered by the update, not taken from a generator's state: a resumed run draws the same.
            samples = self.replay_buffer.sample(batch_size, draw=self._n_updates)
            measures = self._update_critic(samples)
            # An actor that follows a critic which has not yet seen cheap decisions fail learns to take them.
            if self._n_updates > settings.actor_from and self._n_updates % settings.policy_delay == 0:
                measures |= self._update_actor(samples)
                polyak_update(self.actor.parameters(), self.actor_target.parameters(), settings.tau)
            # In every update, unlike the actor's target: it is the target critic that the actor improves by.
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), settings.tau)
            for name, value in measures.items():
                losses.setdefault(name, []).append(value)
        self.policy.set_training_mode(False)
        for name, values in losses.items():
            self.logger.record(f"train/{name}", float(np.mean(values)))

    def _update_critic(self, samples: WindowSamples) -> dict[str, float]:
        loss, named = self.critic.qf0.loss(samples, self._following(samples))
        self._step(self.critic, loss)
        return named

    @torch.no_grad()
    def _following(self, samples: WindowSamples) -> Tensor:
        """[B] value of the next window by the target networks, the TD target's second term; 0 where nothing follows."""
        if not self.learner.gamma:  # spares deciding the next windows, which the loss would multiply by 0
            return torch.zeros_like(samples.dones)
        ahead = samples.next_observations
        decided = self.actor_target.network.decide(ahead)
        features = features_of(ahead.space, decided)
        return self.critic_target.qf0.value(ahead, features, samples.unit) * (1 - samples.dones)

    def _update_actor(self, samples: WindowSamples) -> dict[str, float]:
        """One step up the critic; the critic's weights stay out of it."""
        loss, measures = self._improved(samples)
        cloning = self.cloning
        if cloning and samples.taught.any():
            clone = self.clone_loss(samples)
            loss = loss + cloning * clone
            measures["clone_loss"] = clone.item()
        self._step(self.actor, loss)
        return measures

    def _improved(self, samples: WindowSamples) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy towards changes that the critic values more than the actor's own decisions.

        Where Eq. (14) has the slope at one point, this has differences between configurations: Φ is discrete, and from
        a safe configuration to the next cheaper one the penalty's corner may lie in between. For every expert, every
        layer and the window, ``alternatives`` are compared with the decisions that the actor would take. Gains pull,
        the best of them most; where no draw gains, the actor's own decisions are held, ``HOLD`` times as strongly: more
        would keep them for ever, as most draws do not gain, and without it what is right in one state (nobody comes)
        carries others with it.
        """
        batch, executed, critic = samples.observations, samples.actions, self.critic_target.qf0
        space, mask = batch.space, batch.space.mask
        scored, pointer = self.actor.network.scores_and_pointer(batch, executed)
        rows = padded(mask)
        own_rng = np.random.default_rng((self.seed or 0, self._n_updates))  # as the draw of the windows
        draw = torch.Generator().manual_seed(int(own_rng.integers(2**62)))
        # The arg max, and not what was executed: what is improved is what the actor would decide today.
        base = spread(scored.best(), mask)
        base_features, losses, measures = features_of(space, base), list[Tensor](), dict[str, float]()
        with torch.no_grad():  # once: it is the encoder, the largest part, and no decision changes it
            embedded = critic.embedded_experts(batch)
        # Experts alone cannot leave a layer that is too slow as a whole: no single one makes its barrier shorter.
        for scope in SCOPES:
            tried = torch.cat((base[None], moves(batch, base, scope, self.learner.alternatives, draw)))
            values = judged(critic, scope, batch, embedded, base_features, features_of(space, tried), samples.unit)
            weights, gain = pulls(values, NOTABLE[scope])
            pull = torch.stack([there(one, rows) for one in weights.expand(tried.shape[:-1])])
            # Cross-entropy to the pulls as a distribution, weighted by how much they pull: where nothing gains or
            # holds, an expert adds nothing to the loss.
            strength = pull.sum(0)
            entropies = scored.cross_entropy(torch.stack([there(one, rows) for one in tried]), pull / strength)
            losses.append((strength * entropies).mean())
            measures |= {f"gain_{scope}": gain, "value": values[0].mean().item()}
        return torch.stack(losses).mean() + self._pointed(samples, pointer, measures), measures

    def _pointed(self, samples: WindowSamples, weights: Tensor, measures: dict[str, float]) -> Tensor:
        """The pointer's own loss, weighted; 0 in arms without one."""
        if not self.learner.pointer_weight or not weights.requires_grad:
            return torch.zeros(())
        loss = pointer_loss(samples, weights)
        measures["pointer_loss"] = loss.item()
        return self.learner.pointer_weight * loss

    @property
    def cloning(self) -> float:
        """Weight of the teacher now."""
        return self.learner.clone_weight * max(0.0, 1 - self.done / self.learner.exploration)

    def clone_loss(self, samples: WindowSamples) -> Tensor:
        """Mean cross-entropy of the teacher's configurations, over the experts of windows that have a teacher, and the
        pointer's own loss. Scalar."""
        batch, taught = samples.observations, samples.taught
        scored, pointer = self.actor.network.scores_and_pointer(batch, samples.teacher)
        logs = spread(scored.log_prob(there(samples.teacher, padded(batch.space.mask))), batch.space.mask)
        counted = batch.space.mask & taught[:, None, None]  # padding has a probability too
        return -(logs * counted).sum() / counted.sum().clamp(min=1) + self._pointed(samples, pointer, {})

    def clone(self, gradient_steps: int, begin: int = 0, total: int | None = None) -> float:
        """Warm start: updates of the actor towards its teacher alone, on windows that have one (those of a log have
        none); the last loss. Targets follow at once. ``begin``: how many of ``total`` (None: these are all) were made
        before; draws and rates go on from there."""
        loss, taught = torch.zeros(()), self.replay_buffer.taught()
        self.policy.set_training_mode(True)
        for number in range(begin, begin + gradient_steps):
            falling = 1.0 - (1.0 - self.learner.clone_end) * number / (total or gradient_steps)
            update_learning_rate(self.actor.optimizer, self.learner.clone_rate * falling)
            samples = self.replay_buffer.sample(self.batch_size, draw=CLONING + number, rings=taught)
            loss = self.clone_loss(samples)
            self._step(self.actor, loss)
        # A target that still knows nothing would make the first TD targets those of an untrained actor.
        polyak_update(self.actor.parameters(), self.actor_target.parameters(), 1.0)
        self.policy.set_training_mode(False)
        self.logger.record("train/clone_loss", loss.item())
        return loss.item()

    def _step(self, part: PipelineActor | PipelineCritic, loss: Tensor) -> None:
        optimizer = part.optimizer
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # Just above λ the penalty is slo_weight times as steep as cost: one such window would outweigh its batch.
        nn.utils.clip_grad_norm_(part.parameters(), self.learner.gradient_norm)
        optimizer.step()

    def save(self, path: str | Path | io.BytesIO, exclude: object = None, include: object = None) -> None:  # type: ignore[override]
        """The library's zip: JSON and state dicts, nothing pickled."""
        data = {"networks": asdict(self.networks), "learner": self.learner.as_json()}
        data |= {name: getattr(self, name) for name in STORED}
        save_to_zip_file(path, data=data, params=self.get_parameters(), pytorch_variables={})

    @classmethod
    def load(cls, path: str | Path | io.BytesIO, *args: Any, **kwargs: Any) -> PipelineDDPG:  # type: ignore[override]
        """An agent as it was saved, without its windows. Raises LearnerError for any file that :meth:`save` did not
        write: what a file could hide is looked for before the library opens it."""
        content = checked(path)
        try:
            data, params, _ = load_from_zip_file(content, device="cpu")
            assert data is not None
            learner = from_table(LearnerSettings, without_retired(data["learner"]))
            networks = NetworkSettings(**without_retired(data["networks"]))
            agent = cls(networks, learner, seed=int(data["seed"]))
            agent.set_parameters(params, exact_match=True, device="cpu")
            for name in STORED:
                setattr(agent, name, type(getattr(agent, name))(data[name]))
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, UnpicklingError) as error:
            raise LearnerError(f"checkpoint {path} does not fit this program: {str(error).splitlines()[0]}") from error
        return agent
