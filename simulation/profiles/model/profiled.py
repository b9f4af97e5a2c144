"""The fitted profile as a latency model of the simulator (``simulation.latency.contract.LatencyModel``), and the times
of change of its machine.

Beyond the protocol it states what a limited replica does under load, which one number per configuration cannot:
``work_seconds`` and ``throttle``. A replica is a token bucket: its calls run at full speed (``core_speedup``)
while the bucket holds CPU seconds, and at ``refill`` of that when it is empty; it refills at ``refill`` all the
time, up to ``burst_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from simulation.arrays import Bools, Floats
from simulation.latency.contract import NodeCost, Noise, Sharing, Throttle
from simulation.profiles.fit.fitting import NodeFit, fit
from simulation.profiles.measure.throttle import PERIOD_S, burst_s, idle_table, limit_of
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.storage import Profile
from simulation.workloads.workload import Lifecycle


class FittedLatencyModel:
    """Latencies of one profile. ``cpu_cores`` are configured cores; real ones are ``cpu_scale`` times as many."""

    def __init__(
        self,
        name: str,
        by_cost: Mapping[NodeCost, NodeFit],
        tick_s: float,
        cpu_scale: float = 1.0,
        period_s: float = PERIOD_S,
    ) -> None:
        """``by_cost``: the fit that stands for nodes of this cost; ``tick_s``: the machine's effective timer tick;
        ``period_s``: the CFS period that limits are asked for with."""
        self._name = name
        self._by_cost = dict(by_cost)
        self._tick_s = tick_s
        self._cpu_scale = cpu_scale
        self._period_s = period_s
        self._idle = idle_table(tick_s, period_s)

    @property
    def name(self) -> str:
        return self._name

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """Mean seconds of one call that finds its replica idle. Raises ProfileError for a GPU share. Arrays broadcast:
        [...] in, [...] out."""
        fit, share = self._fit(node), self._share(cpu_cores, gpu_share)
        return np.asarray(fit.apart(tokens) + self._idle.seconds(fit.pass_work(tokens), share))

    def work_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """Seconds of one call alone where nothing limits the replica. Raises ProfileError for a GPU share. Arrays
        broadcast: [...] in, [...] out."""
        fit, _ = self._fit(node), self._share(1.0, gpu_share)
        return np.asarray(fit.apart(tokens) + fit.pass_work(tokens))

    def again_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """Seconds of a call that begins when another has just ended on the replica, from rounds of one call always in
        flight at a full core; at most :meth:`work_seconds`. Raises ProfileError for a GPU share. Arrays broadcast:
        [...] in, [...] out."""
        fit, _ = self._fit(node), self._share(1.0, gpu_share)
        one = np.ones(np.shape(tokens))
        return np.asarray(
            np.minimum(fit.apart_busy_s + fit.together_s(tokens, one, one), self.work_seconds(node, tokens))
        )

    def host_seconds(self, node: NodeCost, tokens: ArrayLike) -> Floats:
        """What a call takes whatever computes its product: its seconds outside its core, and on the core those of the
        shortest call that was measured (taking it from the wire, answering). At most :meth:`work_seconds`. Arrays
        broadcast: [...] in, [...] out."""
        fit = self._fit(node)
        shortest = np.minimum(fit.pass_work(tokens), fit.pass_work(fit.tokens[0]))
        return np.asarray(fit.apart(tokens) + shortest)

    def sharing(self, node: NodeCost, gpu_share: float = 0.0) -> Sharing:
        """What calls cost next to others. Raises ProfileError for a GPU share."""
        fit, _ = self._fit(node), self._share(1.0, gpu_share)
        return fit.sharing

    def throttle(self, node: NodeCost, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Throttle:
        """The token bucket of a replica. Raises ProfileError for a GPU share."""
        share = self._share(cpu_cores, gpu_share)
        limits = [None if x >= 1 else limit_of(float(x), self._tick_s, self._period_s) for x in np.ravel(share)]
        bursts = [0.0 if one is None else burst_s(one) for one in limits]
        quotas = [0.0 if one is None else one.quota_s for one in limits]
        at_once, granted = (np.reshape(np.array(values, dtype=np.float64), share.shape) for values in (bursts, quotas))
        still = [0.0 if one is None else one.period_s - one.quota_s for one in limits]
        stops = self._fit(node).stops
        after_s = stops.after_s(np.reshape(np.array(still, dtype=np.float64), share.shape))
        cold = stops.after is not None  # counted against calls within passes, which find their replica idle
        return Throttle(at_once, np.minimum(share, 1.0), granted, self._tick_s, stops.stop_s, after_s, cold)

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        """Work per second of ``calls`` calls in service over that of one alone; from rounds of calls always in flight.
        Arrays broadcast: [...] in, [...] out.

        Under a limit one alone means an idle replica, with its burst, so this falls below 1 where the limit binds. A
        simulator that simulates :meth:`throttle` itself takes :meth:`core_speedup`.
        """
        fit, share = self._fit(node), np.minimum(1.0, self._share(cpu_cores, gpu_share))
        m = np.asarray(calls, dtype=np.float64)
        alone = fit.apart(tokens) + self._idle.seconds(fit.pass_work(tokens), share)
        together = m * alone / (fit.together_s(tokens, m, share) / share)
        return np.asarray(np.where(m <= 1, 1.0, np.clip(together, 1e-6, m)))

    def core_speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        """The same while the bucket holds: rounds of one call always in flight over rounds of ``calls``, per call.
        Arrays broadcast: [...] in, [...] out.

        Both are of a replica that is never idle. A call that finds it idle costs more (``work_seconds``), since caches
        have grown cold, and in a pipeline they do so whatever else is in flight: other replicas ran in between.
        """
        fit, share = self._fit(node), np.minimum(1.0, self._share(cpu_cores, gpu_share))
        m = np.asarray(calls, dtype=np.float64)
        together = m * fit.together_s(tokens, np.ones_like(m), share) / fit.together_s(tokens, m, share)
        return np.asarray(np.where(m <= 1, 1.0, np.clip(together, 1e-6, m)))

    def core_use(self, node: NodeCost, tokens: ArrayLike, calls: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """Cores in use while the bucket holds: a call alone waits for other things than its core, several never do.
        Raises ProfileError for a GPU share. Arrays broadcast: [...] in, [...] out."""
        fit, _ = self._fit(node), self._share(1.0, gpu_share)
        work = fit.pass_work(tokens)
        alone = work / (fit.apart(tokens) + work)
        return np.asarray(np.where(np.asarray(calls) <= 1, alone, 1.0))

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """Part of the configured cores in use while a call is served alone. Arrays broadcast: [...] in, [...] out."""
        fit, share = self._fit(node), self._share(cpu_cores, gpu_share)
        alone = fit.apart(tokens) + self._idle.seconds(fit.pass_work(tokens), share)
        return np.asarray(np.clip(fit.pass_work(tokens) / alone / share, 0.0, 1.0))

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        """Scatter of single calls at a full core. What a limit adds comes from its phases: see ``throttle``."""
        return Noise.from_samples(self._fit(node).idle_factors)

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        """True within the tokens and real cores that were measured. Arrays broadcast: [...] in, [...] out."""
        fit = self._fit(node)
        t, cores = np.asarray(tokens, dtype=np.float64), np.asarray(cpu_cores, dtype=np.float64) * self._cpu_scale
        inside = (fit.tokens[0] <= t) & (t <= fit.tokens[1])
        near = (fit.shares[0] * 0.999 <= cores) & (cores <= fit.shares[1] * 1.001)
        return np.asarray(inside & near & (np.asarray(gpu_share) == 0))

    def _fit(self, node: NodeCost) -> NodeFit:
        try:
            return self._by_cost[node]
        except KeyError:
            raise ProfileMismatchError(
                f"{self._name} has no node like this {node.kind} of {node.flops_per_token:g} FLOPs per token and "
                f"{node.weights_bytes:g} bytes of weights; it is of another pipeline"
            ) from None

    def _share(self, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        cores, gpu = np.broadcast_arrays(np.asarray(cpu_cores, dtype=np.float64), np.asarray(gpu_share))
        if (gpu > 0).any():
            raise ProfileError(f"{self._name} was measured without a GPU; it holds nothing on GPU shares")
        return np.asarray(cores * self._cpu_scale)


def fitted_model(profile: Profile, costs: Mapping[str, NodeCost], cpu_scale: float | None = None) -> FittedLatencyModel:
    """The latency model of a profile. ``costs``: by node id (``simulation.workloads.workload.manifest_cost``);
    ``cpu_scale``: real cores per configured core where it is used, by default where it was measured. Raises
    ProfileError.
    """
    metadata = profile.metadata
    fitted = fit(profile.rows, metadata.machine.tick_s)
    by_cost: dict[NodeCost, NodeFit] = {}
    for node, cost in costs.items():
        measured = profile.class_of(node)
        if measured not in fitted.nodes:
            raise ProfileError(f"the profile of {metadata.pipeline} has no measured calls of {measured}")
        by_cost.setdefault(cost, fitted.nodes[measured])
    name = f"measured: {metadata.machine.cpu_model}, {metadata.machine.cpu_cores} cores, {metadata.begun}"
    scale = metadata.cpu_scale if cpu_scale is None else cpu_scale
    return FittedLatencyModel(name, by_cost, fitted.tick_s, scale, fitted.period_s)


def lifecycle(profile: Profile) -> Lifecycle:
    """Times of change as medians over nodes. Weights are mapped, so reading them takes no time of its own.

    Raises ProfileError where one was not measured.
    """

    def seconds(*families: str) -> float:
        measured_s = [row.p50_s for row in profile.of(*families) if row.p50_s is not None]
        if not measured_s:
            raise ProfileError(f"the profile of {profile.metadata.pipeline} has no rows of {families[0]}")
        return median(measured_s)

    starts = profile.of("cold_start")
    shapes = [np.array(row.quantiles_s) / row.mean_s for row in starts if row.quantiles_s and row.mean_s]
    return Lifecycle(
        cold_start_s=seconds("cold_start"),
        cold_start_gpu_s=seconds("cold_start"),
        load_bytes_per_s=float("inf"),
        resize_s=seconds("cpu_up", "cpu_down", "memory_up", "memory_down", "concurrency_up", "concurrency_down"),
        drain_s=seconds("drain"),
        noise=Noise.from_samples(np.median(shapes, axis=0)) if shapes else Noise.none(),
    )
