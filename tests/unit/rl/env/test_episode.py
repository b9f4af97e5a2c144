"""Episodes: what they play is what the controller's own loop plays, and what they say of it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autoscaler.capacity import total_needs
from autoscaler.contract import Burst, Capacity, Configuration, Observation, Proposal
from autoscaler.prices import METERS
from evaluation.comparison.policies import limits_of
from rl.episodes import Episode
from rl.reward import RewardSettings
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.simulation import Simulation
from simulation.latency.roofline import Roofline
from simulation.workloads.workload import Host
from tests.parameters import some_fast
from tests.unit.rl.env.builders import REFERENCE, START, drawn, episode, requests, workload

Actions = NDArray[np.int16]


def simulated(one: Episode, seed: int) -> list[Actions]:
    """Random actions until the end; what was ordered in each window."""
    rng, ordered = np.random.default_rng(seed), []
    while one.windows_left:
        ordered.append(drawn(one.encoder.configuration_index, one.state(), rng))
        one.step(ordered[-1])
    return ordered


class Replay:
    """A policy that wishes what an episode was given, one window after the other."""

    name = "replay"

    def __init__(self, desired: Sequence[dict[str, Configuration]]) -> None:
        self._desired = list(desired)

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        desired = self._desired.pop(0) if self._desired else {}
        return Proposal(desired, dict.fromkeys(desired, "replay"))


def loop(ordered: Sequence[Actions], one: Episode) -> list[Step]:
    policy = Replay([one.encoder.configuration_index.configurations(actions) for actions in ordered])
    simulation = Simulation(workload(), requests(), workload().initial(START))
    return simulate_policy(simulation, policy, limits_of(workload()), window_s=30.0, until_s=150.0)


def test_an_episode_simulates_what_the_controller_s_loop_simulates() -> None:
    one = episode()
    outcomes, states, rng, ordered = [one.outcome], [one.state()], np.random.default_rng(1), []
    while one.windows_left:
        ordered.append(drawn(one.encoder.configuration_index, one.state(), rng))
        outcomes.append(one.step(ordered[-1]))
        states.append(one.state())
    steps = loop(ordered, one)
    assert len(steps) == len(outcomes) == 5
    memory = None
    for step, outcome, state in zip(steps, outcomes, states, strict=True):
        np.testing.assert_array_equal(step.window.latency_s, outcome.window.latency_s)
        np.testing.assert_array_equal(step.window.meter, outcome.window.meter)
        own = {node.id: step.report.cost_by_node[node.id] for node in workload().experts}
        assert outcome.busy.sum() == pytest.approx(sum(cost.busy or 0 for cost in own.values()), rel=1e-12)
        assert outcome.provisioned.sum() == pytest.approx(
            sum(cost.provisioned or 0 for cost in own.values()), rel=1e-12
        )
        expected, memory = one.encoder.encode(step.report.observation, memory)
        for name in ("segments", "experts", "pipeline", "present", "least_memory"):
            np.testing.assert_array_equal(getattr(state, name), getattr(expected, name))


def test_equal_seeds_and_actions_give_equal_episodes_and_other_seeds_do_not() -> None:
    first, second, other = episode(seed=5), episode(seed=5), episode(seed=6)
    for one in (first, second, other):
        simulated(one, 2)
    np.testing.assert_array_equal(first.state().experts, second.state().experts)
    assert first.outcome.p95_s == second.outcome.p95_s != other.outcome.p95_s


def test_layer_by_layer_comes_to_the_same_as_the_whole_window() -> None:
    whole, layered, rng = episode(), episode(), np.random.default_rng(7)
    while whole.windows_left:
        actions = drawn(whole.encoder.configuration_index, whole.state(), rng)
        expected = whole.step(actions)
        layered.begin()
        for layer in range(actions.shape[0]):
            layered.decide_layer(layer, actions[layer])
        ended = layered.end()
        np.testing.assert_array_equal(ended.reward, expected.reward)
        np.testing.assert_array_equal(ended.window.latency_s, expected.window.latency_s)
        np.testing.assert_array_equal(layered.state().experts, whole.state().experts)


@pytest.mark.parametrize("meter", ["busy", "provisioned"])
def test_the_rewards_are_those_of_eq_13(meter: str) -> None:
    one = episode(settings=RewardSettings(meter=meter, cost_weight=0.5, slo_weight=2.0))  # type: ignore[arg-type]
    actions = np.zeros((12, 4, 4), dtype=np.int16)
    actions[..., 0] = 30
    outcome = one.step(actions)  # one core, one replica, one call at once: late
    cost = outcome.busy if meter == "busy" else outcome.provisioned
    assert outcome.p95_s is not None and outcome.p95_s > one.workload.slo_s
    late = min(3.0, outcome.p95_s / one.workload.slo_s - 1)
    np.testing.assert_allclose(outcome.reward[:-1], -0.5 * cost[:-1] / REFERENCE)
    assert outcome.reward[-1] == pytest.approx(-0.5 * cost[-1] / REFERENCE - 2.0 * late)


def test_the_provisioned_cost_is_known_from_the_action_alone() -> None:
    one, rng = episode(), np.random.default_rng(8)
    while one.windows_left:
        actions = drawn(one.encoder.configuration_index, one.state(), rng)
        outcome, configuration_index = one.step(actions), one.encoder.configuration_index
        price = configuration_index.unit_per_s[actions[..., 0], actions[..., 1]]
        expected = (price * (actions[..., 2] + one.workload.space.replicas_min) * one.window_s).sum(axis=1)
        np.testing.assert_allclose(outcome.provisioned, expected, rtol=1e-12)


@pytest.mark.slow
def test_requests_that_wait_beyond_lambda_count_with_their_age() -> None:
    one = episode(rps=40.0)
    slow = np.zeros((12, 4, 4), dtype=np.int16)
    slow[..., 0] = 30  # one core, one replica, one call at once: far too little
    answered: set[int] = set(one.outcome.window.finished.tolist())
    while one.windows_left:
        found = one.step(slow)
        answered |= set(found.window.finished.tolist())
        ages = [found.window.end_s - at for at in one.requests.arrival_s[one.requests.arrival_s < found.window.end_s]]
        late = [age for number, age in enumerate(ages) if number not in answered and age > one.workload.slo_s]
        assert found.overdue == len(late) > 0
        assert found.p95_s == pytest.approx(np.quantile([*found.window.latency_s, *late], 0.95))


@pytest.mark.parametrize("meter", METERS)
@pytest.mark.parametrize(
    "host", some_fast([None, Host(cores=4.0, start_s=1e-4, send_s=1e-5, receive_s=1e-5, answer_s=1e-4)], 1)
)
def test_a_branch_is_what_the_step_would_be_and_leaves_no_trace(meter: str, host: Host | None) -> None:
    own = workload() if host is None else replace(workload(), host=host, hop_s=0.0, latency=Roofline(noise_cv=0.0))
    one, other = (
        Episode(own, requests(120.0), own.initial(START), reference=1.0, seconds=120.0, settings=RewardSettings(meter))
        for _ in range(2)
    )
    rng = np.random.default_rng(7)
    while one.windows_left:
        actions = drawn(one.encoder.configuration_index, one.state(), rng)
        one.branch(drawn(one.encoder.configuration_index, one.state(), rng))
        branch, outcome, wanted = one.branch(actions), one.step(actions), other.step(actions)
        np.testing.assert_array_equal(branch.executed, outcome.executed)
        np.testing.assert_allclose(branch.cost_rewards, outcome.cost_rewards, rtol=1e-9)
        assert branch.p95_s == outcome.p95_s == wanted.p95_s
        np.testing.assert_array_equal(outcome.reward, wanted.reward)
    with pytest.raises(ValueError, match="has ended"):
        one.branch(one.state().present)


def test_an_episode_ends_and_refuses_to_go_on() -> None:
    one = episode(60.0)
    assert one.windows_left == 1 and not one.outcome.done
    assert one.step(one.state().present).done
    with pytest.raises(ValueError, match="has ended after 2 windows"):
        one.step(one.state().present)


def test_a_shared_machine_is_stepped_by_windows_on_both_meters_and_by_layers_on_one() -> None:
    host = Host(cores=4.0, start_s=1e-4, send_s=1e-5, receive_s=1e-5, answer_s=1e-4)
    shared = replace(workload(), host=host, hop_s=0.0, latency=Roofline(noise_cv=0.0))
    for meter in METERS:
        settings = RewardSettings(meter)
        one = Episode(shared, requests(60.0), shared.initial(START), reference=1.0, seconds=90.0, settings=settings)
        outcome = one.step(one.state().present)
        assert outcome.finished > 0 and (outcome.cost_rewards < 0).all()
        one.begin()
        if meter == "busy":
            with pytest.raises(ValueError, match="known with its window"):
                one.decide_layer(0, one.state().present[0])
        else:
            rewards = [one.decide_layer(layer, one.state().present[layer]) for layer in range(12)]
            np.testing.assert_allclose(rewards, one.end().cost_rewards)


def test_too_short_an_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="less than two windows"):
        episode(40.0)


def test_positions_off_the_space_are_refused() -> None:
    one = episode(60.0)
    wrong = one.state().present.copy()
    wrong[0, 0, 2] = 8
    with pytest.raises(ValueError, match="positions are 0 to 158, 15, 7, 9"):
        one.step(wrong)


def test_layers_decided_in_turn_stay_within_the_cluster_and_nothing_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a layer took is no longer there for the next one, though the window began with less."""
    begun = total_needs(workload().initial(START).values())
    capacity = Capacity(1.2 * begun.cores, 1e7, int(begun.gpu_tenths) + 10)
    walled = replace(workload(), capacity=capacity)
    one = Episode(walled, requests(), walled.initial(START), reference=REFERENCE, seconds=150.0, seed=0)
    rng = np.random.default_rng(4)
    while one.windows_left:
        actions = drawn(one.encoder.configuration_index, one.state(), rng)
        one.begin()
        for layer, chosen in enumerate(actions):
            one.decide_layer(layer, chosen)
        one.end()
        assert capacity.fits(one.present.values())
    assert not [record for record in caplog.records if "was not changed" in record.getMessage()]


def test_standbys_of_an_episode_are_simulated_and_paid_in_windows_and_branches() -> None:
    burst = Burst(2, headroom=1.5, hold_s=5.0)
    one, plain = (
        Episode(workload(), requests(), workload().initial(START), reference=REFERENCE, seconds=150.0, burst=burst)
        for burst in (burst, None)
    )
    dearer = []
    while one.windows_left:
        actions = one.state().present.copy()
        actions[..., 2] = 0
        branch, outcome, without = one.branch(actions), one.step(actions), plain.step(actions)
        assert np.allclose(branch.cost_rewards, outcome.cost_rewards) and branch.p95_s == outcome.p95_s
        assert outcome.provisioned.sum() * one.settings.cost_weight / REFERENCE == pytest.approx(
            -outcome.cost_rewards.sum()
        )
        assert all(one.present[node.function].burst == burst for node in workload().experts)
        dearer.append(outcome.provisioned.sum() > without.provisioned.sum())
    assert all(dearer)
    again = Episode(workload(), requests(), workload().initial(START), reference=REFERENCE, seconds=150.0, burst=burst)
    with pytest.raises(ValueError, match="what standbys of a layer cost"):
        again.decide_layer(0, again.state().present[0])
