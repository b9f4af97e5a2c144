"""A profiled pipeline on a cluster: its cores as they were measured, shares of a GPU measured or modelled.

Most profiles are of a machine without a GPU, while Φ has GPU shares. What a call would take on one is extrapolated, and
``measured`` states so:

* where the profile has rows of GPU shares, by these (:mod:`simulation.profiles.fit.gpu_fit`); more tokens and other
  shares than were measured have the shape of the roofline, through the nearest measured point, fewer tokens are no
  faster;
* else by the roofline of a named device (:mod:`simulation.latency.roofline`): ``host + launch + link + max(FLOPs /
  peak, bytes / bandwidth)``. ``host`` is measured: seconds outside the core, and on the core those of the shortest
  call. That call has a small product of its own, so what a GPU saves is rather too little than too much.

More than one core is taken as one, as functions compute on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from simulation.arrays import Bools, Floats
from simulation.latency.contract import ALONE, NodeCost, Noise, Sharing, Throttle
from simulation.latency.roofline import Roofline
from simulation.profiles.fit.gpu_fit import GpuFit, fit_gpu
from simulation.profiles.model.profiled import FittedLatencyModel, fitted_model
from simulation.profiles.model.storage import Profile


class ClusterLatencyModel:
    """A limited latency model (:class:`simulation.latency.contract.LimitedLatencyModel`) of cores and of GPU shares,
    which no limit of cores stops."""

    def __init__(
        self, cores: FittedLatencyModel, shares: Mapping[NodeCost, GpuFit], gpu: str, roofline: Roofline
    ) -> None:
        """``shares``: fits of the nodes whose GPU shares were measured, on the GPU named ``gpu``."""
        self._cores, self._shares = cores, dict(shares)
        self._roofline = replace(roofline, host_s=cores.host_seconds)
        device = f"measured on {gpu}" if shares else f"modelled (roofline): {roofline.gpu.name}"
        self._name = f"{cores.name}; GPU shares {device}"

    @property
    def name(self) -> str:
        return self._name

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return _split(
            cpu_cores,
            gpu_share,
            lambda cores, none: self._cores.seconds(node, tokens, cores, none),
            lambda share: self._gpu_seconds(node, tokens, share),
        )

    def work_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        return _split(
            1.0,
            gpu_share,
            lambda _, none: self._cores.work_seconds(node, tokens, none),
            lambda share: self._gpu_seconds(node, tokens, share),
        )

    def again_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """With a GPU share no shorter than any other call. Arrays broadcast: [...] in, [...] out."""
        return _split(
            1.0,
            gpu_share,
            lambda _, none: self._cores.again_seconds(node, tokens, none),
            lambda share: self._gpu_seconds(node, tokens, share),
        )

    def sharing(self, node: NodeCost, gpu_share: float = 0.0) -> Sharing:
        """Nothing on a GPU share."""
        return ALONE if gpu_share > 0 else self._cores.sharing(node)

    def throttle(self, node: NodeCost, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Throttle:
        cores, share = np.broadcast_arrays(np.asarray(cpu_cores, dtype=np.float64), np.asarray(gpu_share))
        limit = self._cores.throttle(node, np.where(share > 0, 1.0, cores), np.zeros(share.shape))
        burst, quota = (np.where(share > 0, 0.0, one) for one in (limit.burst_s, limit.quota_s))
        refill = np.where(share > 0, 1.0, limit.refill)
        return Throttle(burst, refill, quota, limit.tick_s, limit.stop_s, limit.after_stop_s, limit.cold)

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        return self._speedup(self._cores.speedup, node, tokens, cpu_cores, gpu_share, calls)

    def core_speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        return self._speedup(self._cores.core_speedup, node, tokens, cpu_cores, gpu_share, calls)

    def core_use(self, node: NodeCost, tokens: ArrayLike, calls: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """With a GPU share: the part of a call that is its host's. Arrays broadcast: [...] in, [...] out."""
        return _split(
            1.0,
            gpu_share,
            lambda _, none: self._cores.core_use(node, tokens, calls, none),
            lambda share: np.minimum(
                1.0, np.asarray(calls) * (1.0 - self._roofline.utilisation(node, tokens, 0.0, share))
            ),
        )

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """With a GPU share always the roofline's: a call's seconds do not show how much of them the GPU computed.
        Arrays broadcast: [...] in, [...] out."""
        return _split(
            cpu_cores,
            gpu_share,
            lambda cores, none: self._cores.utilisation(node, tokens, cores, none),
            lambda share: self._roofline.utilisation(node, tokens, 0.0, share),
        )

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        if not gpu:
            return self._cores.noise(node, False)
        fit = self._shares.get(node)
        return self._roofline.noise(node, True) if fit is None else Noise.from_samples(fit.factors)

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        """True within the tokens and the cores or GPU shares that were measured. Arrays broadcast: [...] in, [...]
        out."""
        t, share = np.asarray(tokens, dtype=np.float64), np.asarray(gpu_share, dtype=np.float64)
        fit = self._shares.get(node)
        inside = np.zeros(np.broadcast_shapes(t.shape, share.shape), dtype=np.bool_)
        if fit is not None:
            near = (fit.shares[0] * 0.999 <= share) & (share <= fit.shares[1] * 1.001)
            inside = near & (fit.tokens[0] <= t) & (t <= fit.tokens[1])
        return np.asarray(np.where(share > 0, inside, self._cores.measured(node, t, cpu_cores, share)))

    def _speedup(
        self,
        of_cores: Callable[..., Floats],
        node: NodeCost,
        tokens: ArrayLike,
        cpu_cores: ArrayLike,
        gpu_share: ArrayLike,
        calls: ArrayLike,
    ) -> Floats:
        return _split(
            cpu_cores,
            gpu_share,
            lambda cores, none: of_cores(node, tokens, cores, none, calls),
            lambda share: self._gpu_speedup(node, tokens, share, calls),
        )

    def _gpu_seconds(self, node: NodeCost, tokens: ArrayLike, share: Floats) -> Floats:
        fit = self._shares.get(node)
        if fit is None:
            return self._roofline.seconds(node, tokens, 0.0, share)
        t, near = _within(tokens, fit.tokens), _within(share, fit.shares)
        beyond = np.maximum(t, np.asarray(tokens, dtype=np.float64))  # fewer tokens than measured: no faster
        shape = self._roofline.seconds(node, beyond, 0.0, share) / self._roofline.seconds(node, t, 0.0, near)
        return np.asarray(fit.alone(t, np.ones(()), near) * shape)

    def _gpu_speedup(self, node: NodeCost, tokens: ArrayLike, share: Floats, calls: ArrayLike) -> Floats:
        fit, m = self._shares.get(node), np.asarray(calls, dtype=np.float64)
        if fit is None:
            return self._roofline.speedup(node, tokens, 0.0, share, m)
        t, near = _within(tokens, fit.tokens), _within(share, fit.shares)
        together = m * fit.together(t, np.ones(()), near) / fit.together(t, m, near)
        return np.asarray(np.where(m <= 1, 1.0, np.clip(together, 1e-6, m)))


def cluster_model(
    profile: Profile, costs: Mapping[str, NodeCost], cpu_scale: float | None = None
) -> ClusterLatencyModel:
    """As :func:`simulation.profiles.model.profiled.fitted_model`, with GPU shares, the paper's where none was measured.
    Raises ProfileError."""
    measured = {node: profile.class_of(node) for node in costs}
    fits = {name: fit_gpu(name, profile.rows) for name in set(measured.values())}
    shares = {costs[node]: fit for node, name in measured.items() if (fit := fits[name]) is not None}
    gpu = profile.metadata.machine.gpu or "a GPU"
    return ClusterLatencyModel(fitted_model(profile, costs, cpu_scale), shares, gpu, Roofline())


def _within(values: ArrayLike, measured: tuple[float, float]) -> Floats:
    return np.asarray(np.clip(np.asarray(values, dtype=np.float64), *measured))


def _split(
    cpu_cores: ArrayLike,
    gpu_share: ArrayLike,
    on_cores: Callable[[Floats, Floats], Floats],
    on_gpu: Callable[[Floats], Floats],
) -> Floats:
    """Each element by its own resource; ``on_cores`` is given cores and zeros, ``on_gpu`` shares."""
    cores, share = np.asarray(cpu_cores, dtype=np.float64), np.asarray(gpu_share, dtype=np.float64)
    there = share > 0
    if not there.any():
        return on_cores(cores, share)
    if there.all():
        return on_gpu(share)
    by_cores = on_cores(np.where(there, 1.0, cores), np.zeros(share.shape))
    return np.asarray(np.where(there, on_gpu(np.where(there, share, 1.0)), by_cores))
