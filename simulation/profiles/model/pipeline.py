"""A pipeline on the machine of its profile, or on a cluster, as a workload that can be simulated and planned with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from autoscaler.contract import Configuration, ConfigurationSpace
from autoscaler.prices import PriceSheet
from moe.manifest import Manifest, load
from simulation.latency.contract import NodeCost, Noise
from simulation.latency.devices import TEN_GIGABIT, Network
from simulation.profiles.fit.concurrency_fit import fitted_overlap
from simulation.profiles.fit.fitting import factors
from simulation.profiles.fit.stops import FULL
from simulation.profiles.measure.concurrent import FAMILY, slowdowns
from simulation.profiles.measure.idle_gap import idle_times
from simulation.profiles.model.cluster import cluster_model
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.profiled import fitted_model, lifecycle
from simulation.profiles.model.storage import Profile
from simulation.workloads.workload import (
    SEGMENT,
    Host,
    Lifecycle,
    TokenLengths,
    Workload,
    manifest_cost,
    pipeline_workload,
)


def measured_workload(
    directory: Path,
    profile: Profile,
    tokens: TokenLengths | NDArray[np.integer],
    *,
    slo_s: float,
    cpu_scale: float | None = None,
    space: ConfigurationSpace | None = None,
    shared: bool = False,
    front_s: float = 0.0,
    segment_configuration: Configuration = SEGMENT,
) -> Workload:
    """The pipeline in ``directory`` as the profile's machine runs it. ``tokens``: how long requests are, or such
    lengths themselves; ``cpu_scale``: as in ``fitted_model``; ``space``: Φ. ``tokens`` [requests] where lengths are
    given.

    ``shared``: everything runs on the one machine that was measured, ingress and all
    (``simulation.workloads.workload.Host``). Otherwise every replica has its cores to itself and the ingress's work is
    a constant between stages, as on a roomy cluster. ``front_s``: between client and ingress, there and back. Raises
    ProfileError, ``moe.errors.ManifestError``.
    """
    manifest = load(directory, verify=False)
    costs = {node.id: manifest_cost(manifest, node) for node in manifest.nodes}
    host = host_of(profile, manifest)
    lengths = tokens if isinstance(tokens, TokenLengths) else TokenLengths.from_samples(tokens, "given lengths")
    hop_s = _between_stages_s(host, manifest, lengths.mean)
    workload = pipeline_workload(
        directory,
        fitted_model(profile, costs, cpu_scale),
        lifecycle(profile),
        slo_s=slo_s,
        tokens=lengths,
        space=space,
        segment_configuration=segment_configuration,
        request_s=front_s + (0.0 if shared else host.start_s + host.answer_s + hop_s),
        hop_s=0.0 if shared else hop_s,
        host=host if shared else None,
    )
    if not shared:
        return workload
    host = replace(host, idle=idle_times(profile.rows))
    return replace(workload, host=replace(host, overlap=_overlap(profile, replace(workload, host=host), cpu_scale)))


def clustered_workload(
    directory: Path,
    profile: Profile,
    tokens: TokenLengths,
    *,
    slo_s: float,
    changes: Lifecycle,
    prices: PriceSheet,
    cpu_scale: float | None = None,
) -> Workload:
    """The pipeline in ``directory`` on a cluster that has room: calls as :mod:`simulation.profiles.model.cluster`
    predicts them, every replica with its resource to itself, ``changes`` and ``prices`` of the cluster; the rest as of
    :func:`measured_workload`. The ingress's measured work and what a mean request moves over a network of 10 Gbit/s are
    a constant between stages. Raises ProfileError, ``moe.errors.ManifestError``.
    """
    manifest = load(directory, verify=False)
    costs = {node.id: manifest_cost(manifest, node) for node in manifest.nodes}
    host = host_of(profile, manifest)
    hop_s = _between_stages_s(host, manifest, tokens.mean) + _moved_s(manifest, costs, tokens.mean, TEN_GIGABIT)
    return pipeline_workload(
        directory,
        cluster_model(profile, costs, cpu_scale),
        changes,
        slo_s=slo_s,
        tokens=tokens,
        prices=prices,
        request_s=host.start_s + host.answer_s + hop_s,
        hop_s=hop_s,
        measured=False,
    )


def _overlap(profile: Profile, workload: Workload, cpu_scale: float | None) -> tuple[float, ...]:
    """What concurrency costs by the profile's bursts; nothing where it has none."""
    rows = profile.of(FAMILY)
    measured = slowdowns(rows)
    if not measured:
        return ()
    scale = profile.metadata.cpu_scale if cpu_scale is None else cpu_scale
    return fitted_overlap(workload, measured, rows[0].tokens, 1 / scale)


def host_of(profile: Profile, manifest: Manifest) -> Host:
    """The machine, and the ingress's CPU seconds: so much a call, and a token sent or received.

    Least squares without negative parts over the profile's passes. A request's beginning and answer count as one more
    call, and a call and its reply as equal: passes differ too little in their number of calls to show more. Raises
    ProfileError where no passes were measured. The scatter of passes is that of the profile's; that of their calls,
    which it holds, too, is small compared with it.
    """
    rows = [(row.cpu_s_per_call, row.node_calls, row.tokens) for row in profile.of("pass")]
    counted = [(cpu_s, calls, tokens) for cpu_s, calls, tokens in rows if cpu_s is not None and calls is not None]
    if not counted:
        raise ProfileError(f"the profile of {profile.metadata.pipeline} has no whole passes with CPU seconds and calls")
    cpu_s, calls, tokens = np.array(counted).T
    moved = tokens * _visits(manifest)
    design = np.stack([calls + 1, moved], axis=1)
    weights = 1 / cpu_s  # relative errors, so that short passes count as much as long ones
    (call_s, token_s), _ = nnls(design * weights[:, None], cpu_s * weights)
    return Host(
        cores=float(profile.metadata.machine.cpu_cores),
        start_s=float(call_s) / 2,
        send_s=float(call_s) / 2,
        receive_s=float(call_s) / 2,
        answer_s=float(call_s) / 2,
        token_s=float(token_s) / 2,
        noise=Noise.from_samples(factors(profile.of("pass"))),
        start_cores=_start_cores(profile),
    )


def _start_cores(profile: Profile) -> float:
    """What starts at a full core take of it; a whole one where their CPU seconds were not counted."""
    starts = [row for row in profile.of("cold_start") if row.cpu_s_per_call and row.p50_s and row.share >= FULL]
    return min(1.0, median((row.cpu_s_per_call or 0.0) / (row.p50_s or 1.0) for row in starts)) if starts else 1.0


def _visits(manifest: Manifest) -> int:
    """Nodes that a token visits."""
    return manifest.layers + 1 + manifest.layers * manifest.router.calls


def _moved_s(manifest: Manifest, costs: Mapping[str, NodeCost], tokens: float, network: Network) -> float:
    """Seconds on the ingress's network between two stages of a pass of so many tokens, in the mean."""
    moved = {node: cost.bytes_in_per_token + cost.bytes_out_per_token for node, cost in costs.items()}
    segments = sum(moved[node.id] for node in manifest.nodes if node.kind == "segment")
    experts = sum(manifest.tokens_share(node) * moved[node.id] for node in manifest.nodes if node.kind == "expert")
    return tokens * (segments + experts) / network.bytes_per_s / (2 * manifest.layers + 1)


def _between_stages_s(host: Host, manifest: Manifest, tokens: float) -> float:
    """The ingress's work for the calls of a pass of so many tokens that need every expert, by stage."""
    calls = manifest.layers + 1 + sum(len(manifest.experts(layer)) for layer in range(manifest.layers))
    total_s = calls * (host.send_s + host.receive_s) + 2 * tokens * _visits(manifest) * host.token_s
    return total_s / (2 * manifest.layers + 1)
