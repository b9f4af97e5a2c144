"""Roofline: seconds from FLOPs, bytes of weights and bytes of activations against a device's peaks and bandwidths.

A call alone takes ``call_s + bytes / network + host link (GPU) + max(FLOPs / peak, bytes / bandwidth)``. Calls at once
run as one batch that reads the weights once: batch seconds of m calls are ``max(m · FLOPs / peak, (weights + m ·
activations) / bandwidth)`` times ``1 + contention · (m - 1)``, while each call's own exchange over the network goes on
next to the others'. So concurrency pays as long as reading weights dominates, and costs beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from simulation.arrays import Bools, Floats
from simulation.latency.contract import NodeCost, Noise
from simulation.latency.devices import RTX_3090, TEN_GIGABIT, XEON_6230R, CpuDevice, GpuDevice, Network


@dataclass(frozen=True, eq=False)
class Roofline:
    """A cluster of one kind of node. All numbers are modelled: ``measured`` is False everywhere."""

    cpu: CpuDevice = XEON_6230R
    gpu: GpuDevice = RTX_3090
    network: Network = TEN_GIGABIT
    contention: float = 0.02
    """What each further call at once adds to a batch's seconds, as a share (assumption: caches and threads)."""
    noise_cv: float = 0.1
    """Coefficient of variation of a call's seconds, lognormal (assumption)."""
    host_s: Callable[[NodeCost, ArrayLike], Floats] | None = None
    """Seconds of a call of so many tokens outside the device, where they are known; None: the network's."""

    @property
    def name(self) -> str:
        return f"modelled (roofline): {self.cpu.name}; {self.gpu.name}; {self.network.name}"

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        one = np.ones(())
        apart, product = self._apart_s(node, tokens, gpu_share), self._batch_s(node, tokens, cpu_cores, gpu_share, one)
        return np.asarray(apart + product)

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        m = np.asarray(calls, dtype=np.float64)
        apart = self._apart_s(node, tokens, gpu_share)
        alone = apart + self._batch_s(node, tokens, cpu_cores, gpu_share, np.ones(()))
        together = apart + self._batch_s(node, tokens, cpu_cores, gpu_share, m) * (1 + self.contention * (m - 1))
        return np.asarray(np.minimum(m, m * alone / together))

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        product = self._batch_s(node, tokens, cpu_cores, gpu_share, np.ones(()))
        cores = np.asarray(cpu_cores, dtype=np.float64)
        parallel = np.where(cores > 0, self._spread(cores) / np.maximum(cores, 1e-9), 1.0)
        return np.asarray(parallel * product / (product + self._apart_s(node, tokens, gpu_share)))

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        return Noise.lognormal(self.noise_cv)

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        shape = np.broadcast_shapes(np.shape(tokens), np.shape(cpu_cores), np.shape(gpu_share))
        return np.zeros(shape, dtype=np.bool_)

    def _apart_s(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """Seconds of a call in which it does not use the replica's unit."""
        t, share = np.asarray(tokens, dtype=np.float64), np.asarray(gpu_share, dtype=np.float64)
        moved = t * (node.bytes_in_per_token + node.bytes_out_per_token)
        link = self.gpu.launch_s + moved / self.gpu.link_bytes_per_s
        if self.host_s is not None:
            host = self.host_s(node, t)
        else:
            host = self.network.call_s + moved / self.network.bytes_per_s
        return np.asarray(host + np.where(share > 0, link, 0.0))

    def _batch_s(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: Floats
    ) -> Floats:
        """Seconds of one product for ``calls`` calls of ``tokens`` tokens each, without contention."""
        t, cores = np.asarray(tokens, dtype=np.float64), np.asarray(cpu_cores, dtype=np.float64)
        share = np.asarray(gpu_share, dtype=np.float64)
        on_gpu = share > 0
        units = self._spread(cores)
        peak = np.where(
            on_gpu,
            share * (self.gpu.flops_per_s * self.gpu.compute_efficiency),
            units * (self.cpu.core_flops_per_s * self.cpu.compute_efficiency),
        )
        bandwidth = np.where(
            on_gpu,
            share * (self.gpu.bytes_per_s * self.gpu.memory_efficiency),
            cores * (self.cpu.core_bytes_per_s * self.cpu.memory_efficiency),
        )
        flops = node.flops_per_call + t * (node.flops_per_token + t * node.flops_per_token_squared)
        read = node.touched_bytes + calls * (t * (node.bytes_in_per_token + node.bytes_out_per_token))
        return np.asarray(np.maximum(calls * flops / peak, read / bandwidth))

    def _spread(self, cores: Floats) -> Floats:
        """Cores' worth of work done by ``cores`` cores (Amdahl)."""
        return np.asarray(cores / (1 + self.cpu.serial_share * np.maximum(cores - 1, 0.0)))


def hops_times(factor: float) -> Roofline:
    """The cluster's own latency model with a call's exchange over the network ``factor`` times as long."""
    return Roofline(network=replace(TEN_GIGABIT, call_s=TEN_GIGABIT.call_s * factor))
