"""The machine that ``benchmarks.fidelity`` runs on: how fast it was around a run, and what else used it meanwhile.

Virtual cores are not equally fast all day. So before each run, and after the last, some requests are sent, alone and
with every function at a full core, and the simulation is given how many times as long they took as in the profile
(``simulation.workloads.workload.Host.pace``). No run has a part in it, but they are as far apart
as a run's, and of as many texts: one
text again and again, sent twice as fast, finds warmer caches and shows a machine that is faster than the runs find it.
What lone requests take changes by a tenth from one minute to the next, so all of those count that were sent within
``NEAR_S`` of a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
import numpy as np

from autoscaler.contract import Configuration
from simulation.arrays import Floats
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure.machine import busy_s
from simulation.profiles.measure.process_tree import own_cpu_s
from simulation.workloads.workload import Workload

SINGLES, SINGLES_PER_S = 60, 2.5
"""Single requests, and how many a second: none meets another."""
WARM = 10
"""Sent before them and not counted: what is left over from a run or a change is gone then."""
NEAR_S = 300.0
SIMULATED = 10
"""Times each of them is sent in the simulator."""
MOST_PACE = 2.0
"""A machine that takes longer is not one that is slower now, but one that is in use."""
SEED = 5


@dataclass(frozen=True)
class Singles:
    """What single requests took."""

    latency_s: list[float]
    """At the client."""
    counts: list[list[int]]
    """[1 + experts, texts], see ``simulation.engine.requests``; requests take the texts in turn."""
    front_s: float
    """Mean seconds of them that the ingress does not see: client and gateway, there and back."""
    others_cores: float = 0.0
    """That processes outside the benchmark used meanwhile."""
    front_cpu_s: float = 0.0
    """CPU seconds of client and gateway for one of them, without what both use when there is nothing to do; 0 in older
    records, which do not know it."""
    at_s: float = 0.0
    """Unix time; 0 in older records, which do not know it."""
    cpu_s: float = 0.0
    """CPU seconds of all functions for one of them, the ingress included; 0 in older records."""
    clock_s: float = 0.0
    """Median CPU seconds of ``clock.SpeedClock``'s piece of work meanwhile; 0 in older records."""


def pace_of(sets: Sequence[Singles], workload: Workload, asked_for: Configuration) -> float:
    """Median over all requests of ``sets`` of their seconds over those of the same in the simulator, both without what
    the ingress does not see. ``asked_for``: what every function ran with. Raises ClickException where the machine was
    in use."""
    pace = float(np.median(np.concatenate([ratios(singles, workload, asked_for) for singles in sets])))
    if pace > MOST_PACE:
        raise click.ClickException(
            f"single requests took {pace:.1f} times as long as in the profile, at most {MOST_PACE:g} times can be "
            f"compared; somebody else uses the machine"
        )
    return pace


def ratios(singles: Singles, workload: Workload, asked_for: Configuration) -> Floats:
    """[requests] seconds measured over the same text's median in the simulator at pace 1."""
    assert workload.host is not None
    expected = expected_s(singles, replace(workload, host=replace(workload.host, pace=1.0)), asked_for)
    measured_s: Floats = np.array(singles.latency_s) - singles.front_s
    return measured_s / np.resize(expected, measured_s.size)


def expected_s(singles: Singles, workload: Workload, asked_for: Configuration) -> Floats:
    """[texts] median seconds in the simulator, at the workload's pace, without what the ingress does not see."""
    assert workload.host is not None
    alone = replace(workload, request_s=0.0, host=replace(workload.host, front_s=0.0))
    texts = np.array(singles.counts, dtype=np.uint16).reshape(len(singles.counts), -1)
    many = texts.shape[1] * SIMULATED
    start = {node.function: asked_for for node in workload.topology.nodes}
    requests = Requests(np.arange(many) / SINGLES_PER_S, np.tile(texts, SIMULATED), "single requests")
    window = Simulation(alone, requests, start, seed=SEED).advance(many / SINGLES_PER_S + 60.0)
    seconds = np.full(many, np.nan)
    seconds[window.finished] = window.latency_s
    expected: Floats = np.nanmedian(seconds.reshape(SIMULATED, -1), axis=0)
    return expected


def cpu_pace_of(sets: Sequence[Singles], workload: Workload, asked_for: Configuration) -> tuple[float, float]:
    """(pace by CPU seconds, seconds that requests wait on top): for machines that others use. Their processes make
    functions wait for a core at each call, which is no work; the CPU seconds that functions count do not contain it.
    ``asked_for``: what every function ran with."""
    assert workload.host is not None
    pace = float(np.mean([one.cpu_s / expected_cpu_s(one, workload, asked_for) for one in sets]))
    paced = replace(workload, host=replace(workload.host, pace=pace))
    seconds = [np.mean(expected_s(one, paced, asked_for)) for one in sets]
    waits_s = [np.mean(one.latency_s) - one.front_s - mean_s for one, mean_s in zip(sets, seconds, strict=True)]
    return pace, max(0.0, float(np.mean(waits_s)))


def expected_cpu_s(singles: Singles, workload: Workload, asked_for: Configuration) -> float:
    """Mean CPU seconds of functions and ingress for one of ``singles`` at pace 1."""
    host, counts = workload.host, np.array(singles.counts, dtype=np.float64).reshape(len(singles.counts), -1)
    assert host is not None
    rows = [(node, 0) for node in workload.segments] + [(node, 1 + n) for n, node in enumerate(workload.experts)]
    total_s = np.full(counts.shape[1], host.start_s + host.answer_s)
    for node, row in rows:
        cost, tokens, cores = workload.costs[node.id], counts[row], asked_for.cpu_cores
        used = workload.latency.utilisation(cost, tokens, cores, 0.0)
        real_s = workload.latency.seconds(cost, tokens, cores, 0.0) * used
        total_s += (tokens > 0) * (real_s + host.send_s + host.receive_s + 2 * tokens * host.token_s)
    return float(total_s.mean())


def near(sets: Sequence[Singles], begun_s: float, ended_s: float) -> list[Singles]:
    """Those that were sent within ``NEAR_S`` of what began and ended then (Unix time)."""
    return [one for one in sets if begun_s - NEAR_S <= one.at_s <= ended_s + NEAR_S]


class Usage:
    """Cores in use since it was created: of the whole machine, and of others than this process and its descendants."""

    def __init__(self) -> None:
        self.begun_s, self._machine_s, self._own_s = time.time(), busy_s(), own_cpu_s()

    def cores(self) -> tuple[float, float]:
        """(of the machine, of others), on average so far."""
        seconds, machine_s = time.time() - self.begun_s, busy_s() - self._machine_s
        return machine_s / seconds, max(0.0, machine_s - (own_cpu_s() - self._own_s)) / seconds
