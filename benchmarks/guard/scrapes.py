"""The simulator as targets that are scraped: counters, gauges and histograms that grow from tick to tick, which the
controller's own monitor makes windows of. So broken metrics are broken where they break: at the target.

What only the simulator knows (the use of GPU shares, exact busy seconds) no policy sees here, as in production.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autoscaler.contract import NAMESPACE, Observation, Topology
from autoscaler.monitor.catalogue import SAMPLES
from autoscaler.monitor.growth import Labels, Samples, TargetHistory, readings_of
from autoscaler.state.features import observe
from autoscaler.state.readings import LARGEST, SHAPES, Buckets, Job, Key, Readings, Series
from simulation.engine.metrics import BOUNDS_OF_HISTOGRAMS, SimulatedMetrics, cumulative
from simulation.engine.simulated import Simulated
from simulation.engine.simulation import Window

KINDS = ("missing", "stale", "nan", "zero", "reset", "late")
"""``missing``: a third of the experts have no series. ``stale``: no target answers. ``nan``: every sample of half of
the metrics is NaN. ``zero``: every sample of a third of the experts is 0. ``reset``: the ingress restarts just before
every fourth scrape, and counts from 0. ``late``: every scrape shows what was true three scrapes ago."""
LATE = 3
NAMES = {series: name for name, series in SAMPLES.items()}
JOBS: tuple[Job, ...] = ("gateway", "ingress")
_Sample = tuple[str, Labels]


@dataclass(frozen=True)
class Break:
    """One kind of trouble from ``start_s`` to ``end_s``. ``nodes``: ids and functions of the experts that it meets;
    ``series``: the metrics; ``every``: scrapes from one restart to the next."""

    kind: str
    start_s: float
    end_s: float
    nodes: frozenset[str]
    series: frozenset[Series]
    every: int = 4

    @classmethod
    def drawn(cls, kind: str, topology: Topology, seconds: float, seed: int) -> Break:
        """In the middle of a run of ``seconds``, a quarter to a half of it."""
        rng = np.random.default_rng((seed, KINDS.index(kind), 1))
        start = rng.uniform(0.2, 0.4)
        experts = [node for node in topology.nodes if node.kind == "expert"]
        chosen = rng.permutation(len(experts))[: max(1, len(experts) // 3)]
        names = {name for place in chosen for name in (experts[place].id, experts[place].function)}
        every = list(Series)
        series = {every[place] for place in rng.permutation(len(every))[: len(every) // 2]}
        end_s = seconds * (start + rng.uniform(0.25, 0.5))
        return cls(kind, seconds * start, end_s, frozenset(names), frozenset(series))

    def meets(self, sample: _Sample) -> bool:
        """Whether a sample is of one of ``nodes``."""
        return any(value.removesuffix(f".{NAMESPACE}") in self.nodes for _, value in sample[1])


class ScrapedMetrics(SimulatedMetrics):
    """Observations as the controller's monitor makes them of a simulation's targets; ``exact``: the simulator's own of
    every window, for whoever bills and judges. Scrapes older than ``stale_s`` are not used."""

    def __init__(
        self, simulation: Simulated, epoch_s: float = 0.0, breaks: Break | None = None, stale_s: float = 15.0
    ) -> None:
        super().__init__(simulation, epoch_s)
        self.exact: list[Observation] = []
        self._topology = simulation.workload.topology
        self._breaks, self._stale_s = breaks, stale_s
        self._targets: dict[str, TargetHistory] = {job: TargetHistory(job) for job in JOBS}
        self._samples: dict[Job, dict[_Sample, float]] = {job: {} for job in JOBS}
        self._past: deque[dict[Job, dict[_Sample, float]]] = deque(maxlen=LATE + 1)
        self._restarted: Mapping[_Sample, float] = {}
        self._cpu_s: dict[Key, list[float]] = {}
        self._broken_scrapes = 0
        for node in simulation.nodes:  # replicas of the beginning have used nothing yet
            if (one := simulation.configuration(node.function)).cpu_cores:
                self._cpu_s[f"{node.function}.{NAMESPACE}",] = [0.0] * one.running
        self._show_cpu_s()

    def add(self, window: Window) -> None:
        super().add(window)
        self._count(self._with_calls(window, self._readings([window])))

    def observe(self, now_s: float, window_s: float) -> Observation:
        if self._windows:
            self.exact.append(super().observe(now_s, window_s))
        self._past.append({job: dict(samples) for job, samples in self._samples.items()})
        problems = self._scrape(now_s)
        readings = readings_of(self._targets, now_s, window_s, problems, self._stale_s)
        return observe(self._topology, readings)

    def _scrape(self, now_s: float) -> list[str]:
        """Both targets, as they answer now; sentences where they do not."""
        broken = self._breaks if self._breaks and self._breaks.start_s <= now_s < self._breaks.end_s else None
        problems = []
        for job in JOBS:
            history = self._targets[job]
            history.forget(now_s - 600.0)
            samples = self._answer(job, broken)
            if samples is None:
                problems.append(f"target {job} could not be scraped: ConnectTimeout")
            else:
                history.scrapes.append((now_s, samples))
        self._broken_scrapes += broken is not None
        return problems

    def _answer(self, job: Job, broken: Break | None) -> Samples | None:
        """What a target answers; None: nothing."""
        now = self._past[-1][job]
        if self._breaks and self._breaks.kind == "reset" and job == "ingress":
            if broken is not None and self._broken_scrapes % broken.every == 0:
                self._restarted = {sample: value for sample, value in now.items() if _grows(sample)}
            return {sample: value - self._restarted.get(sample, 0.0) for sample, value in now.items()}
        if broken is None or broken.kind == "reset":
            return now
        if broken.kind == "stale":
            return None
        if broken.kind == "late":
            return self._past[0][job]
        if broken.kind == "zero":
            return {sample: 0.0 if broken.meets(sample) else value for sample, value in now.items()}
        if broken.kind == "missing":
            return {sample: value for sample, value in now.items() if not broken.meets(sample)}
        values = {sample: np.nan if SAMPLES[sample[0]] in broken.series else value for sample, value in now.items()}
        return {sample: value for sample, value in values.items() if 0.0 <= value < LARGEST}  # as the monitor parses

    def _with_calls(self, window: Window, readings: Readings) -> Readings:
        """With the histograms of calls and the seconds of standbys, which the simulator's own path leaves out."""
        pipeline, nodes = self._topology.pipeline, self._simulation.nodes
        calls: dict[Key, Buckets] = {
            (pipeline, node.id): cumulative(BOUNDS_OF_HISTOGRAMS, window.histogram[place])
            for place, node in enumerate(nodes)
        }
        activated: dict[Key, float] = {
            (f"{node.function}.{NAMESPACE}",): float(window.activated_s[place])
            for place, node in enumerate(nodes)
            if self._simulation.configuration(node.function).burst is not None
        }
        return replace(
            readings,
            histograms={**readings.histograms, Series.NODE_CALL_SECONDS: calls},
            values={**readings.values, Series.STANDBY_ACTIVATED_SECONDS: activated},
        )

    def _count(self, readings: Readings) -> None:
        """Add a window to the counters, and set the gauges."""
        for job in JOBS:
            old = self._samples[job]
            self._samples[job] = {sample: value for sample, value in old.items() if _grows(sample)}
        for series, values in readings.values.items():
            shape = SHAPES[series]
            if shape.counted:
                continue
            samples = self._samples[shape.job]
            for key, value in values.items():
                sample = _sample(series, key)
                samples[sample] = value + (samples.get(sample, 0.0) if shape.kind == "counter" else 0.0)
        for series, histograms in readings.histograms.items():
            samples = self._samples[SHAPES[series].job]
            for key, buckets in histograms.items():
                for bound, count in buckets:
                    sample = _sample(series, key, ("le", repr(bound)))
                    samples[sample] = samples.get(sample, 0.0) + count
        self._count_replicas(readings)

    def _count_replicas(self, readings: Readings) -> None:
        """CPU seconds and memory of each replica: a series that appears with it and goes with it."""
        gateway = self._samples["gateway"]
        for sample in [sample for sample in gateway if SHAPES[SAMPLES[sample[0]]].counted]:
            del gateway[sample]
        cpu_s_of: dict[Key, list[float]] = {}
        for key, cpu_s in readings.measured.get(Series.REPLICA_CPU_SECONDS, {}).items():
            replicas = readings.count(Series.REPLICA_CPU_SECONDS, *key) or 0
            before = [*self._cpu_s.get(key, [])[:replicas], *[0.0] * replicas][:replicas]
            cpu_s_of[key] = [one + cpu_s / replicas for one in before]
        self._cpu_s = cpu_s_of
        self._show_cpu_s()
        for key, memory_bytes in readings.values.get(Series.REPLICA_MEMORY_BYTES, {}).items():
            replicas = readings.count(Series.REPLICA_MEMORY_BYTES, *key) or 0
            for number in range(replicas):
                sample = _sample(Series.REPLICA_MEMORY_BYTES, key, ("replica", str(number)))
                gateway[sample] = memory_bytes / replicas

    def _show_cpu_s(self) -> None:
        gateway = self._samples["gateway"]
        for key, replicas in self._cpu_s.items():
            for number, total_s in enumerate(replicas):
                gateway[_sample(Series.REPLICA_CPU_SECONDS, key, ("replica", str(number)))] = total_s


def _grows(sample: _Sample) -> bool:
    return SHAPES[SAMPLES[sample[0]]].kind in ("counter", "histogram")


@lru_cache(maxsize=1 << 16)
def _sample(series: Series, key: Key, *more: tuple[str, str]) -> _Sample:
    return NAMES[series], tuple(sorted((*zip(SHAPES[series].labels, key, strict=True), *more)))
