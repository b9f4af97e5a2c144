"""``benchmarks.janus``: days cut into slices at true rates, settings chosen by rule, changes as short as the days; and
the policy in the controller's loop over a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autoscaler.decision.limits import LimitSettings
from autoscaler.policy.janus import JanusPolicy, JanusSettings
from autoscaler.policy.static import StaticPolicy
from benchmarks.janus.__main__ import (
    DOUBLED,
    EQUAL,
    HPA,
    JANUS,
    NUMBERS,
    WHOLE,
    DoublingPolicy,
    Setting,
    best,
    candidates,
    doubled,
)
from benchmarks.janus.world import CORES, REPLICA, Clock, Run, placement, sliced, world
from platform_words.memory import RuntimeMemory
from simulation.engine.controlled import simulate_policy
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from tests.unit.autoscaler.builders import NOW_S, observation
from tests.unit.simulation.engine.builders import Arithmetic, configuration, poisson, workload
from traces.errors import NoMatchError

CLOCK = Clock(6.0, 3)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two clients: 5 a second all day 0 but its second window, 10 a second in the first window of day 1."""
    rows = ["client,window_start_s,rate_rps,iat_cv,pattern,param1,param2"]
    rows += [f"1,{start},5,1,Gamma,1,0.2" for start in range(0, 86400, 600) if start != 600]
    rows += ["2,86400,10,1,Gamma,1,0.1"]
    path = tmp_path / "clients.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_day_is_the_first_seconds_of_each_window_at_true_rates(table: Path) -> None:
    trace = sliced(table, 0, 1, CLOCK, seed=1)
    assert trace.duration_s == 144 * 6.0
    by_slice, _ = np.histogram(trace.arrival_s, np.arange(145) * 6.0)
    assert by_slice[1] == 0 and by_slice.sum() / (143 * 6.0) == pytest.approx(5.0, rel=0.1)


def test_days_are_counted_from_the_first_and_empty_ones_refused(table: Path) -> None:
    trace = sliced(table, 1, 1, CLOCK, seed=1)
    assert trace.arrival_s.max() < 6.0 and trace.requests == pytest.approx(60, abs=30)
    with pytest.raises(NoMatchError, match="nothing arrives on days 5 to 6"):
        sliced(table, 5, 2, CLOCK, seed=1)


def test_changes_take_the_same_part_of_the_time_between_decisions() -> None:
    cycle = world("bert-4", 4, CLOCK).lifecycle
    days = world("bert-4", 4, Clock(600.0, 3)).lifecycle
    assert days.cold_s(75e6, gpu=False) / 1800 == pytest.approx(cycle.cold_s(75e6, gpu=False) / CLOCK.decision_s)
    assert days.drain_s / cycle.drain_s == pytest.approx(CLOCK.compression) == 100


@pytest.mark.parametrize(("replicas", "found"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16)])
def test_doublings_are_never_below_what_is_wanted(replicas: int, found: int) -> None:
    assert doubled(replicas) == found
    inner = StaticPolicy({"m-expert-0-0": REPLICA.with_replicas(replicas)})
    proposal = DoublingPolicy(inner).propose(observation(), NOW_S, None)
    assert proposal.desired["m-expert-0-0"] == REPLICA.with_replicas(found)


def run_of(cores: float, violated: float) -> Run:
    return Run(np.zeros(1), np.array([cores]), np.ones(1), 1.0, violated, 0, 0.1)


def test_the_cheapest_setting_that_keeps_the_slo_is_chosen() -> None:
    settings = [Setting(str(number), StaticPolicy()) for number in range(4)]
    tried = [run_of(9.0, 0.0), run_of(5.0, 0.05), run_of(4.0, 0.06), run_of(7.0, 0.01)]
    assert best(list(zip(settings, tried, strict=True))).in_words == "1"
    none_keeps = [run_of(9.0, 0.2), run_of(5.0, 0.3), run_of(4.0, 0.2), run_of(7.0, 0.9)]
    assert best(list(zip(settings, none_keeps, strict=True))).in_words == "2"
    assert best(list(zip(settings, tried, strict=True)), 0.02).in_words == "3"


def test_every_row_chooses_among_as_many_settings_but_the_one_that_is_to_be_as_good_as_another() -> None:
    bare = world("bert-4", 4, CLOCK)
    tried = {name: len(candidates(name, bare)) for name in (JANUS, NUMBERS, WHOLE, DOUBLED, HPA)}
    assert len(set(tried.values())) == 1
    factors = {name: {one.in_words for one in candidates(name, bare)} for name in (JANUS, EQUAL)}
    assert factors[EQUAL] and not factors[JANUS] & factors[EQUAL]


def test_every_expert_may_go_to_every_machine_and_first_to_those_of_the_placement() -> None:
    places = placement(world("bert-4", 4, CLOCK), 3)
    assert len(places) == 48 and all(sorted(machines) == [0, 1, 2] for machines in places.values())
    firsts = [machines[0] for machines in places.values()]
    assert set(firsts) == {0, 1, 2} and max(firsts.count(machine) for machine in range(3)) <= 24


def test_in_the_controller_s_loop_it_grows_until_the_slo_holds_and_shrinks_when_load_goes() -> None:
    """120 requests a second for a minute and 5 a second for another, from one replica of everything."""
    small_workload = workload((3, 2), Arithmetic(), slo_s=0.2, segment_configuration=configuration(1))
    arrivals = np.concatenate([poisson(120.0, 7200), 60.0 + poisson(5.0, 300, seed=1)])
    requests = draw_requests(small_workload, arrivals, seed=2)
    policy = JanusPolicy(JanusSettings(small_workload.slo_s, down_windows=2), CORES)
    runtime = RuntimeMemory.same(small_workload.runtime_mb)
    limits = LimitSettings(space=small_workload.space, alpha=small_workload.alpha, runtime=runtime)
    simulation = Simulation(small_workload, requests, small_workload.initial(configuration()), seed=2)
    steps = simulate_policy(simulation, policy, limits, window_s=5.0, until_s=120.0)
    tails = [step.window.quantile_s(0.95) or 0.0 for step in steps]
    replicas = [int(step.window.replicas["ready"].sum()) for step in steps]
    assert tails[0] > small_workload.slo_s and max(tails[8:12]) <= small_workload.slo_s
    assert replicas[0] < replicas[11] and replicas[-1] < replicas[11] and tails[-1] <= small_workload.slo_s
