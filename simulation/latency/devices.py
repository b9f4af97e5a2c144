"""Published peaks and bandwidths of the modelled cluster's devices, each with its source.

The paper (section 5.1) names eight nodes of 52 CPUs, 128 GB and one RTX 3090, and no CPU model; two 26-core Xeon Gold
6230R are the common server of that size and are assumed. What is not published is marked as an assumption of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """One CPU core of a node that is fully let out: each core has its even share of the memory bandwidth."""

    name: str
    source: str
    core_flops_per_s: float
    """FP32 peak of one core."""
    core_bytes_per_s: float
    """Memory bandwidth of one core."""
    compute_efficiency: float
    """Share of the peak that small matrix products reach (assumption)."""
    memory_efficiency: float
    """Share of the bandwidth that streaming reaches (assumption)."""
    serial_share: float
    """Part of a call that does not spread over cores, Amdahl's law (assumption)."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU, cut into shares by MPS: a share gets that part of the multiprocessors and of the bandwidth."""

    name: str
    source: str
    flops_per_s: float
    """FP32 peak of the whole GPU, without tensor cores."""
    bytes_per_s: float
    link_bytes_per_s: float
    """Between host and GPU, each way."""
    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    """Host work of one call: kernel launches and synchronisation (assumption)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Between the ingress and a replica."""

    name: str
    source: str
    bytes_per_s: float
    call_s: float
    """HTTP exchange, encoding and decoding of one call without its bytes (assumption: measured on loopback)."""


XEON_6230R = CpuDevice(
    name="Intel Xeon Gold 6230R (26 cores, two a node)",
    source="Intel ARK: 26 cores, 2.10 GHz base, two AVX-512 FMA units (64 FP32 operations a cycle); "
    "six channels DDR4-2933, 140.8 GB/s a socket",
    core_flops_per_s=2.1e9 * 64,
    core_bytes_per_s=140.8e9 / 26,
    compute_efficiency=0.6,
    memory_efficiency=0.8,
    serial_share=0.05,
)
RTX_3090 = GpuDevice(
    name="NVIDIA GeForce RTX 3090",
    source="NVIDIA Ampere GA102 whitepaper: 35.6 TFLOPS FP32, 936 GB/s; PCIe 4.0 x16, 31.5 GB/s each way",
    flops_per_s=35.6e12,
    bytes_per_s=936e9,
    link_bytes_per_s=31.5e9,
    compute_efficiency=0.5,
    memory_efficiency=0.8,
    launch_s=0.0002,
)
TEN_GIGABIT = Network(
    name="10 Gbit/s Ethernet",
    source="assumed, the paper names none; 0.3 ms a call is what this project's wire and server take on loopback",
    bytes_per_s=1.25e9,
    call_s=0.0003,
)
