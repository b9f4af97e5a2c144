"""One episode: windows of a simulated pipeline, decided one after the other through the controller's own parts.

What happens in a window is what ``simulation.engine.controlled`` does with a policy: the simulator's metrics through
the controller's state code, :func:`autoscaler.decision.limits.decide`, the actuator on the simulated platform, the cost
meters. Only who decides is turned round: here the caller asks for a state and hands in actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoscaler.actuator.actuator import apply
from autoscaler.contract import SLO_QUANTILE, Burst, Configuration, Decision, Memory, Observation, Proposal
from autoscaler.decision.limits import LimitState, decide
from autoscaler.prices import METERS, total_cost
from autoscaler.state.features import complete
from evaluation.comparison.policies import limits_of
from rl.agent.contract import State
from rl.features import Encoder, calls_of
from rl.reward import RewardSettings, cost_rewards, penalty
from simulation.arrays import Floats
from simulation.engine.kernel import BUSY_S
from simulation.engine.metrics import SimulatedMetrics
from simulation.engine.requests import Requests
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import Simulation, Window
from simulation.workloads.workload import Workload

WINDOW_S = 30.0
REASON = "episode"


def encoder_of(workload: Workload) -> Encoder:
    """What makes states of a workload's observations."""
    return Encoder(workload.topology, limits_of(workload), workload.prices, workload.slo_s, calls_of(workload))


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of one window. n layers, K experts of the largest one; costs in the price sheet's currency."""

    busy: Floats
    """[n] experts' cost while they were busy, Eq. (7)."""
    provisioned: Floats
    """[n] experts' cost of being there."""
    cost_rewards: Floats
    """[n] ``-cost_weight · C_i / C_ref`` on the meter that counts."""
    penalty: float
    """At most 0; in the last layer's reward."""
    p95_s: float | None
    """P95 of the requests answered in this window and of those overdue at its end, by their age (not answered, older
    than λ: without them a window that answers nobody would look good). None where there are neither."""
    finished: int
    overdue: int
    executed: NDArray[np.int16]
    """[n, K, 4] configurations in force after the decision limits, the nearest of Φ."""
    window: Window
    done: bool
    """Whether the episode ends with this window."""

    @property
    def reward(self) -> Floats:
        """[n], Eq. (13)."""
        rewards = self.cost_rewards.copy()
        rewards[-1] += self.penalty
        return rewards


@dataclass(frozen=True, eq=False)
class Branch:
    """The coming window under actions that are not taken; n, K and costs as in :class:`Outcome`."""

    executed: NDArray[np.int16]
    """[n, K, 4] configurations that the decision limits would have let through."""
    cost_rewards: Floats
    """[n] ``-cost_weight · C_i / C_ref`` on the meter that counts."""
    p95_s: float | None
    """As in :class:`Outcome`."""


class Episode:
    """Windows of ``window_s`` until ``seconds``. The first one is simulated with ``start``, so that there is something
    to see; then :meth:`state` and :meth:`step` in turn. Equal arguments and actions give equal numbers.
    ``observation``, ``present`` (function → configuration) and ``outcome`` are of the window simulated last.

    ``start``: function → what it begins with (as of ``Workload.initial``); ``reference``: C_ref of the reward;
    ``burst``: standbys of every expert, next to whatever is decided for it; ``encoder``: what makes states, None:
    :func:`encoder_of`.
    """

    def __init__(
        self,
        workload: Workload,
        requests: Requests,
        start: Mapping[str, Configuration],
        *,
        reference: float,
        seconds: float,
        window_s: float = WINDOW_S,
        seed: int = 0,
        settings: RewardSettings | None = None,
        burst: Burst | None = None,
        encoder: Callable[[Workload], Encoder] | None = None,
    ) -> None:
        windows = int(np.floor(seconds / window_s + 1e-9))
        if windows < 2:
            raise ValueError(f"an episode of {seconds:g} s has less than two windows of {window_s:g} s")
        self.workload, self.requests, self.window_s, self.reference = workload, requests, window_s, reference
        self.settings = settings or RewardSettings()
        self.limits = limits_of(workload)
        self.encoder = (encoder or encoder_of)(workload)
        self.windows, self.simulated, self.seed = windows, 0, seed
        self.burst = burst
        experts = {node.function: start[node.function] for node in workload.experts}
        self._simulation = Simulation(workload, requests, {**start, **self._with_standbys(experts)}, seed=seed)
        self._metrics, self._platform = SimulatedMetrics(self._simulation), SimulatedPlatform(self._simulation)
        self._limit_state = LimitState()
        self._answered = np.zeros(requests.arrival_s.size, dtype=np.bool_)
        self._memory: Memory = None
        self.present: Mapping[str, Configuration] = self._platform.configurations()
        self.begin()
        self.end()

    @property
    def windows_left(self) -> int:
        """Windows that can still be decided."""
        return self.windows - self.simulated

    def state(self) -> State:
        """What is known before the coming window is decided."""
        return self._state

    def step(self, actions: NDArray[np.integer]) -> Outcome:
        """Decide all experts, ``actions [n, K, 4]`` (padding is not looked at), and simulate a window. Raises
        ValueError for a position outside Φ and once the episode has ended."""
        return self.order(self.encoder.configuration_index.configurations(actions))

    def order(self, desired: Mapping[str, Configuration]) -> Outcome:
        """Decide by function, standbys included where the episode gives none itself, and simulate a window. Raises
        ValueError once the episode has ended."""
        self._order(desired)
        self.begin()
        return self.end()

    def branch(self, actions: NDArray[np.integer]) -> Branch:
        """Result that :meth:`step` would have, from a copy of the simulation; the episode stays where it is. It costs a
        window's simulation, without the state that would follow. Raises ValueError as :meth:`step` does. ``actions``
        [n, K, 4]."""
        self._check_going()
        fork = self._simulation.fork()
        platform = SimulatedPlatform(fork)
        apply(
            platform, self._decided(self.encoder.configuration_index.configurations(actions)), wait=lambda pause_s: None
        )
        window = fork.advance(fork.now_s + self.window_s)
        answered = self._answered.copy()
        answered[window.finished] = True
        configuration_index = self.encoder.configuration_index
        layers = range(len(configuration_index.functions))
        costs = np.array([self._layer_cost(fork, layer, window.activated_s) for layer in layers])
        rewards = cost_rewards(costs, self.reference, self.settings)
        return Branch(configuration_index.actions(platform.configurations()), rewards, self._p95_s(window, answered)[0])

    def begin(self) -> None:
        """Open the coming window, for deciding layer by layer. Raises ValueError once the episode has ended."""
        self._check_going()
        self._simulation.open(self._simulation.now_s + self.window_s)
        self._next_stage = 0

    def decide_layer(self, layer: int, actions: NDArray[np.integer]) -> float:
        """Decide the experts of ``layer`` in the open window, ``actions [K, 4]``, and simulate it up to this layer's
        end; returns the layer's reward for its cost.

        Ordered from the window's beginning on, so that all layers in turn have the same result as :meth:`step`. Raises
        ValueError where that cost is not known yet: the busy one on a shared machine, whose stages end together, and
        that of standbys.
        """
        if self.burst is not None:
            raise ValueError(f"{self.workload.name}: what standbys of a layer cost is known with its window")
        if self.workload.host is not None and self.settings.meter == "busy":
            raise ValueError(
                f"{self.workload.name}: on one shared machine a layer's busy cost is known with its window"
            )
        self._order(self.encoder.configuration_index.layer_configurations(layer, actions))
        self._run_to(2 * layer + 2)
        cost = self._layer_cost(self._simulation, layer)
        return float(cost_rewards(np.array([cost]), self.reference, self.settings)[0])

    def in_force(self, layer: int) -> NDArray[np.int16]:
        """[K, 4] configurations that the experts of ``layer`` have by now, the nearest of Φ; padding 0."""
        index, configurations = self.encoder.configuration_index, self._platform.configurations()
        actions = index.actions({name: configurations[name] for name in index.functions[layer]})
        return np.asarray(actions[layer])

    def _check_going(self) -> None:
        if not self.windows_left:
            raise ValueError(f"the episode has ended after {self.windows} windows")

    def _layer_cost(self, simulation: Simulation, layer: int, activated_s: Floats | None = None) -> float:
        """What the experts of ``layer`` cost in the simulation's present window, on the meter that counts;
        ``activated_s`` [functions]: how long their standbys were activated."""
        cost, prices, provisioned = 0.0, self.workload.prices, self.settings.meter == "provisioned"
        for function in self.encoder.configuration_index.functions[layer]:
            configuration, place = simulation.configuration(function), simulation.index[function]
            seconds = configuration.running * self.window_s if provisioned else simulation.meter[place, BUSY_S]
            cost += float(seconds) * prices.unit_per_s(configuration)
            if activated_s is not None and provisioned:
                cost += prices.standbys(configuration, self.window_s, float(activated_s[place]))
        return cost

    def _with_standbys(self, configurations: Mapping[str, Configuration]) -> dict[str, Configuration]:
        if self.burst is None:
            return dict(configurations)
        return {name: replace(one, burst=self.burst) for name, one in configurations.items()}

    def end(self) -> Outcome:
        """Simulate the rest of the open window, and look at it."""
        self._run_to(self._simulation.stages)
        window = self._simulation.close()
        self._metrics.add(window)
        self.simulated += 1
        self.present = self._platform.configurations()
        self.observation: Observation = complete(self._metrics.observe(window.end_s, self.window_s), self.present)
        self._state, self._memory = self.encoder.encode(self.observation, self._memory)
        self.outcome = self._judge(window)
        return self.outcome

    def _run_to(self, stage: int) -> None:
        while self._next_stage < stage:
            self._next_stage = self._simulation.run_stage() + 1

    def layer_costs(self, observation: Observation) -> dict[str, Floats]:
        """Meter → [n] cost of the experts of each layer in an observed window."""
        _, by_node = total_cost(observation, self.workload.prices)
        layers = [self.workload.topology.experts(layer) for layer in range(self.workload.topology.layers)]
        return {
            meter: np.array([sum(getattr(by_node[node.id], meter) for node in layer) for layer in layers])
            for meter in METERS
        }

    def _order(self, desired: Mapping[str, Configuration]) -> None:
        """What the controller does with a proposal."""
        result = apply(self._platform, self._decided(desired), wait=lambda pause_s: None)
        self._limit_state = self._limit_state.after(result.applied, self._simulation.now_s)

    def _decided(self, desired: Mapping[str, Configuration]) -> tuple[Decision, ...]:
        """What the decision limits make of ``desired``, with what layers before took of the cluster."""
        return decide(
            self.workload.topology,
            self.observation,
            Proposal(self._with_standbys(desired), dict.fromkeys(desired, REASON)),
            self._platform.configurations(),
            self._simulation.now_s,
            self._limit_state,
            self.limits,
            self.workload.prices,
        )

    def _p95_s(self, window: Window, answered: NDArray[np.bool_]) -> tuple[float | None, int]:
        """P95 of those answered and overdue, and how many are overdue; ``answered`` [requests] at the window's end."""
        arrivals = self.requests.arrival_s
        arrived = int(np.searchsorted(arrivals, window.end_s, side="left"))
        ages_s = window.end_s - arrivals[:arrived][~answered[:arrived]]
        overdue_s = ages_s[ages_s > self.workload.slo_s]
        judged_s = np.concatenate([window.latency_s, overdue_s])
        return float(np.quantile(judged_s, SLO_QUANTILE)) if judged_s.size else None, int(overdue_s.size)

    def _judge(self, window: Window) -> Outcome:
        slo_s = self.workload.slo_s
        self._answered[window.finished] = True
        p95_s, overdue = self._p95_s(window, self._answered)
        costs = self.layer_costs(self.observation)
        return Outcome(
            busy=costs["busy"],
            provisioned=costs["provisioned"],
            cost_rewards=cost_rewards(costs[self.settings.meter], self.reference, self.settings),
            penalty=penalty(p95_s, slo_s, self.settings),
            p95_s=p95_s,
            finished=int(window.finished.size),
            overdue=overdue,
            executed=self._state.present,
            window=window,
            done=not self.windows_left,
        )
