"""A simulated platform with walls: what is beyond them is not brought about, and segments live inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.capacity import needs, total_needs
from autoscaler.contract import BoundedPlatform, Capacity, Configuration, Resources
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid
from evaluation.comparison.quickest import quickest, quickest_p95_s
from simulation.engine.errors import SimulationError
from simulation.engine.requests import draw_requests
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import (
    PAPER_CAPACITY,
    PAPER_MACHINES,
    SEGMENT_BUSY,
    SEGMENT_TIME,
    NoRoomError,
    in_world,
    segment_seconds,
)
from tests.unit.simulation.engine.builders import Arithmetic, configuration, poisson, workload

A, B = "m-expert-0-0", "m-expert-0-1"


def walled(cores: float, served: Workload | None = None) -> Workload:
    """Experts have so many cores; segments and ingress take 8."""
    return replace(served or workload(), capacity=Capacity(8.0 + cores, 1e6))


def started(served: Workload) -> Simulation:
    requests = draw_requests(served, poisson(20.0, 200), seed=0)
    return Simulation(served, requests, served.initial(configuration()), seed=0)


def replicas(platform: SimulatedPlatform) -> tuple[int, int]:
    present = platform.configurations()
    return present[A].replicas, present[B].replicas


def test_an_order_beyond_the_capacity_is_brought_about_as_far_as_there_is_room() -> None:
    platform = SimulatedPlatform(started(walled(7.0)))
    platform.apply(A, configuration(1), configuration(4))
    assert replicas(platform) == (3, 1)
    assert isinstance(platform, BoundedPlatform) and platform.bounds()[A].replicas == 3
    assert total_needs(platform.configurations().values()).within(Resources(15.0, 1e6))


def test_what_waits_gets_what_another_gives_up_at_the_same_moment() -> None:
    platform = SimulatedPlatform(started(walled(7.0)))
    platform.apply(A, configuration(1), configuration(3))
    platform.apply(B, configuration(1), configuration(2))
    assert replicas(platform) == (3, 1)
    platform.apply(A, configuration(3), configuration(1))
    assert replicas(platform) == (1, 2) and platform.bounds() == {}


def test_what_was_refused_earlier_has_to_be_ordered_again() -> None:
    simulation = started(walled(5.0))
    platform = SimulatedPlatform(simulation)
    platform.apply(A, configuration(1), configuration(2))
    simulation.advance(5.0)
    assert platform.bounds()[A].replicas == 1
    platform.apply(B, configuration(1), configuration(1, memory_mb=128))
    assert replicas(platform) == (1, 1) and platform.bounds() == {}


def test_what_something_else_ordered_between_two_orders_counts() -> None:
    simulation = started(walled(7.0))
    platform = SimulatedPlatform(simulation)
    platform.apply(A, configuration(1), configuration(2))
    simulation.order(B, configuration(3))
    platform.apply(A, configuration(2), configuration(4))
    assert replicas(platform) == (2, 3)


def test_what_is_brought_about_is_all_that_there_is_room_for_whatever_was_ordered() -> None:
    rng, served, refused = np.random.default_rng(0), walled(7.3), 0
    platform, capacity = SimulatedPlatform(started(served)), served.capacity
    wanted: dict[str, Configuration] = {}
    assert capacity is not None
    for _ in range(60):
        function = (A, B)[rng.integers(2)]
        wanted[function] = configuration(int(rng.integers(1, 9)), cpu_cores=(0.1, 0.3, 1.0, 1.7)[rng.integers(4)])
        platform.apply(function, platform.configurations()[function], wanted[function])
        present = platform.configurations()
        assert capacity.fits(present.values())
        for name, target in wanted.items():
            now, least = present[name], min(present[name].replicas, target.replicas)
            if now != target:
                refused += 1
                only_fewer = now == target.with_replicas(now.replicas)
                more = target.with_replicas(now.replicas + 1 if only_fewer else least)
                assert not capacity.fits({**present, name: more}.values())
    assert refused > 10


def test_larger_limits_without_room_leave_the_present_ones() -> None:
    platform = SimulatedPlatform(started(walled(5.0)))
    platform.apply(A, configuration(1), configuration(1, cpu_cores=2.0))
    assert platform.configurations()[A] == configuration(1)


def test_a_capacity_that_is_never_reached_changes_no_number() -> None:
    one, other = started(workload()), started(walled(1e6))
    for simulation in (one, other):
        SimulatedPlatform(simulation).apply(A, configuration(1), configuration(3))
    assert (one.advance(20.0).latency_s == other.advance(20.0).latency_s).all()


def test_nothing_is_deployed_beyond_the_capacity() -> None:
    with pytest.raises(SimulationError, match="more cores than there are"):
        started(walled(4.0))


def test_totals_are_those_of_the_paper_s_machines() -> None:
    assert Capacity(machines=(PAPER_MACHINES,)).total == PAPER_CAPACITY.total == Resources(416.0, 1048576.0, 80)


@pytest.mark.parametrize("world", ["mixed", "cores-only"])
def test_segments_are_the_cheapest_that_keep_their_rules(world: str) -> None:
    """Brute force over resources and replicas."""
    rate, base = 50.0, replace(paper_workload("bert-4"), slo_s=0.08 if world == "mixed" else 0.2)
    served = in_world(base, world, rate)  # type: ignore[arg-type]
    space, slo_s = served.space, served.slo_s
    assert (world == "mixed") == bool(space.gpu_shares) and served.capacity is not None
    sized, options = served.segment_configuration, []
    for cores, share in space.resources:
        seconds, long_s = segment_seconds(served, cores, share), sum(segment_seconds(served, cores, share, 0.95))
        for count in range(2, 40):
            option = replace(sized, cpu_cores=cores, gpu_share=share, replicas=count)
            inside = needs(option).times(14).within(served.capacity.total.times(0.5))
            if rate * max(seconds) / count <= SEGMENT_BUSY[0] and long_s <= SEGMENT_TIME * slo_s and inside:
                options.append(count * served.prices.unit_per_s(option))
    assert sized.replicas * served.prices.unit_per_s(sized) == pytest.approx(min(options))
    assert served.expert_room == served.capacity.total.minus(needs(sized).times(14))


def test_segments_without_room_are_refused_with_a_sentence() -> None:
    with pytest.raises(NoRoomError, match="bert-4: no configuration of the segments"):
        paper_workload("bert-4", mean_rps=5000.0, world="cores-only")
    assert paper_workload("bert-4", mean_rps=5000.0).capacity is None


def test_the_quickest_p95_is_that_of_a_simulation_where_nothing_waits() -> None:
    served = workload(model=Arithmetic(scatter=Noise.lognormal(0.3)))
    requests = draw_requests(served, poisson(5.0, 120), seed=3)
    every = {node.function: node for node in served.topology.nodes}
    wide: dict[str, Configuration] = {
        function: served.segment_configuration if node.kind == "ingress" else quickest(served, node).with_replicas(120)
        for function, node in every.items()
    }
    window = Simulation(served, requests, wide, seed=7).advance(1e4)
    assert window.finished.size == 120
    assert quickest_p95_s(served, requests, 7) == pytest.approx(float(np.quantile(window.latency_s, 0.95)), rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"world": "flat"}, "world is flat"), ({"relative_slo": 1.0}, "relative_slo is 1.0"),
     ({"hop_factor": 0.0}, "hop_factor is 0.0"), ({"gpu_price_factor": -1.0}, "gpu_price_factor is -1.0")],
)  # fmt: skip
def test_a_grid_refuses_what_no_world_is(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(EvaluationError, match=sentence):
        Grid(("bert-4",), ("slow",), (0,), ("static",), (0,), **settings)  # type: ignore[arg-type]
