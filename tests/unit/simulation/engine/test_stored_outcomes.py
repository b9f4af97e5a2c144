"""Outcomes of three plays to the last bit, as they were once: faster code has to come to the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from autoscaler.contract import Configuration
from simulation.engine import kernel
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Host, Workload
from tests.unit.simulation.engine.builders import Limited, Order, configuration, simulate, workload

REQUESTS, WINDOW_S = 1500, 1.0


def drawn(number: int) -> float:
    """0 to below 1, the same on every machine, as the simulator's own draws are."""
    return kernel.draw(11, 0, 0, number)


def on_a_cluster(number: int) -> Configuration:
    """CPU or GPU, one to four replicas, one to eight slots."""
    share = round(int(drawn(number) * 4) / 10, 1)
    replicas, slots = 1 + int(drawn(number + 1) * 4), 1 + int(drawn(number + 2) * 8)
    return Configuration(512, 0.0 if share else 6.0, share, replicas, slots)


def under_limits(number: int) -> Configuration:
    """A tenth of a core to 1.3, so some are not limited at all."""
    cores = round(0.1 + 1.2 * drawn(number), 2)
    return configuration(1 + int(drawn(number + 1) * 4), cpu_cores=cores, concurrency=1 + int(drawn(number + 2) * 6))


def limited(host: Host | None = None) -> Workload:
    model = Limited(base_s=0.0005, token_s=0.0002, power=0.4, scatter=Noise.lognormal(0.4), burst_s=0.01)
    return workload((3, 2), model, hop_s=0.0, host=host)


def simulated(found: Workload, draw: Callable[[int], Configuration], rate_per_s: float) -> tuple[str, float]:
    """Hash of latencies, meters, histograms and replica-seconds of all windows, and the call-seconds that were waited.
    Arrivals come in bursts; a third of the experts change in each window."""
    gaps_s = [np.log(1 - drawn(10**6 + number)) ** 2 / 2 for number in range(REQUESTS)]
    arrivals = np.round(np.cumsum(gaps_s) / rate_per_s, 6)
    requests = draw_requests(found, arrivals, seed=11)
    moments = [float(moment) for moment in np.arange(WINDOW_S, arrivals[-1] + WINDOW_S, WINDOW_S)]
    changes = [(moment, node.function) for moment in moments for node in found.experts]
    orders: list[Order] = [
        (moment, function, draw(100 * number))
        for number, (moment, function) in enumerate(changes)
        if drawn(100 * number + 99) < 1 / 3
    ]
    simulation = Simulation(found, requests, found.initial(draw(10**7)), seed=11)
    latency, windows = simulate(simulation, [*moments, moments[-1] + 900.0], orders)
    digest = hashlib.sha256(latency.astype("<f8").tobytes())
    for window in windows:
        for array in (window.meter, window.histogram, window.barrier, window.ready_s):
            digest.update(array.astype("<f8").tobytes())
    assert not np.isnan(latency).any()
    return digest.hexdigest()[:16], float(sum(window.meter[:, kernel.WAITED_S].sum() for window in windows))


@pytest.mark.parametrize(
    ("found", "draw", "rate_per_s", "stored"),
    [
        (paper_workload("bert-4"), on_a_cluster, 300.0, "0b274e1bff2d1614"),
        (limited(), under_limits, 100.0, "01a1d21ee5970406"),
        (
            limited(Host(2.0, 0.0005, 0.0002, 0.0002, 0.0003, 1e-6, Noise.lognormal(0.2))),
            under_limits,
            50.0,
            "ae5cd199195fc9c2",
        ),
    ],
    ids=["modelled cluster", "CPU limits", "one machine"],
)
def test_outcomes_are_to_the_last_bit_what_they_were(
    found: Workload, draw: Callable[[int], Configuration], rate_per_s: float, stored: str
) -> None:
    """Stored by the code of the first version whose agreement with SimPy was measured; a rule that changes changes
    these, and only then may they be stored anew."""
    digest, waited_s = simulated(found, draw, rate_per_s)
    assert waited_s > 1 and digest == stored
