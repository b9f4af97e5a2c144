"""Heterogeneous nodes: a file that describes them, and where Prism places a running pipeline's experts on them. No
network.

A *profile* of nodes is a JSON file: by node the memory that experts may take on each of its GPUs (or on the node, where
it has none), its speed and the rate at which weights reach it; and the lines between nodes::

    {"nodes": {"a": {"memory_mb": 24}, "b": {"memory_mb": [24, 24], "speed": 1.5, "load_mb_per_s": 2000}},
     "mbit_per_s": 500}

``mbit_per_s`` is one number, or by node the numbers to all others: ``{"a": {"b": 500}, "b": {"a": 100}}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moe.manifest import Manifest
from placement.cluster import Cluster, PlanArray, make_cluster
from placement.errors import PlacementError
from placement.layout import Floats
from placement.migration import Migration, Scale, decide
from placement.prism import Method, plan

Places = Mapping[str, Mapping[str, int]]
"""Function → node → replicas."""

NODE_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
MIB = 1 << 20
BYTES_OF_MBIT = 125_000
LOAD_MB_PER_S = 1000.0
"""Where a profile does not say how fast weights reach a node."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Nodes by name, and the same as placement knows them: GPUs in order of their nodes."""

    names: tuple[str, ...]
    cluster: Cluster

    def pair_s(self, manifest: Manifest) -> float:
        """Seconds on the line of one token's way to an expert on another node and back, mean over pairs of nodes."""
        expert = manifest.experts(0)[0]
        between = ~np.eye(self.cluster.nodes, dtype=np.bool_)
        rows = expert.bytes_in_per_token + expert.bytes_out_per_token
        return float(rows * (1 / self.cluster.bandwidth[between]).mean())

    def nodes_as_gpus(self) -> Cluster:
        """Every node as one GPU of all its memory and its slowest rate: which GPU of a node holds an expert is the
        node's own matter."""
        first = np.searchsorted(self.cluster.node, np.arange(self.cluster.nodes))
        return make_cluster(
            [1] * self.cluster.nodes,
            np.add.reduceat(self.cluster.memory_bytes, first).tolist(),
            load_bytes_per_s=np.minimum.reduceat(self.cluster.load_bytes_per_s, first).tolist(),
            bytes_per_s=self.cluster.bandwidth,
        )


@dataclass(frozen=True, eq=False)
class Seen:
    """Calls of experts by the node they arose on, [nodes, layers, experts], within the last ``window_s``."""

    frequency: Floats
    window_s: float


@dataclass(frozen=True, eq=False)
class Choice:
    """A plan and whether it is worth its move."""

    held: PlanArray
    """[nodes, layers, experts] bool."""
    verdict: Migration
    fits: bool
    """What runs now is within the profile's memory and covers all experts; if not, Eq. (4) is not asked."""

    @property
    def worth(self) -> bool:
        return self.verdict.copied > 0 and (self.verdict.worth or not self.fits)


def read_profile(path: Path) -> Profile:
    """Raises PlacementError: what is wrong, where, and what it may be."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlacementError(f"{path} is not a profile of nodes in JSON: {str(error)[:200]}") from error
    fields = _object(document, f"{path}", {"nodes", "mbit_per_s"})
    nodes = _object(fields.get("nodes"), f"{path}: nodes")
    if len(nodes) < 2:
        raise PlacementError(f"{path}: nodes names {len(nodes)}; there is nothing to place on fewer than two")
    memory: list[list[int]] = []
    speed: list[float] = []
    rate: list[float] = []
    for name, given in nodes.items():
        where = f"{path}: node {name[:40]!r}"
        if NODE_NAME.fullmatch(name) is None:
            raise PlacementError(f"{where}: names are lower-case letters, digits, '-' and '.'")
        one = _object(given, where, {"memory_mb", "speed", "load_mb_per_s"})
        sizes = one.get("memory_mb")
        sizes = sizes if isinstance(sizes, list) and sizes else [sizes]
        memory.append([int(_number(size, f"{where}: memory_mb") * MIB) for size in sizes])
        speed += [_number(one.get("speed", 1.0), f"{where}: speed")] * len(sizes)
        rate += [_number(one.get("load_mb_per_s", LOAD_MB_PER_S), f"{where}: load_mb_per_s") * 1e6] * len(sizes)
    names = tuple(nodes)
    cluster = make_cluster(
        [len(sizes) for sizes in memory],
        [size for sizes in memory for size in sizes],
        speed=speed,
        load_bytes_per_s=rate,
        bytes_per_s=_lines(fields.get("mbit_per_s"), names, f"{path}: mbit_per_s"),
    )
    return Profile(names, cluster)


def seen_by(documents: Iterable[tuple[str, Any]], profile: Profile, manifest: Manifest) -> Seen:
    """What ingresses have counted (``GET /statistics``), each document with where it is from; ingresses on one node
    are added. Raises PlacementError."""
    shape = (manifest.layers, len(manifest.experts(0)))
    frequency = np.zeros((len(profile.names), *shape))
    windows = []
    for where, document in documents:
        fields = _object(document, where)
        node = fields.get("node")
        if node not in profile.names:
            names = ", ".join(profile.names)
            raise PlacementError(f"{where}: node is {node!r}; the profile has {names}, and each ingress names its own")
        try:
            tokens = np.array(fields.get("tokens"), dtype=np.float64)
        except (ValueError, TypeError):
            tokens = np.empty(0)
        if tokens.shape != shape or not np.isfinite(tokens).all() or tokens.min() < 0:
            raise PlacementError(f"{where}: tokens must be {list(shape)} numbers of 0 or more for {manifest.name}")
        frequency[profile.names.index(node)] += tokens
        windows.append(_number(fields.get("window_s"), f"{where}: window_s"))
    if not windows:
        raise PlacementError(f"{manifest.name} has no ready ingress that could report what experts are called")
    return Seen(frequency, max(windows))


def planned(calls: Seen, profile: Profile, manifest: Manifest, method: Method = "auto") -> PlanArray:
    """[nodes, layers, experts] bool. Raises InfeasibleError, which names what is not met."""
    held = plan(calls.frequency, profile.cluster, expert_bytes(manifest), method=method)
    return profile.cluster.by_node(held)


def chosen(
    calls: Seen, now: PlanArray, profile: Profile, manifest: Manifest, horizon_s: float, method: Method = "auto"
) -> Choice:
    """A plan for what was seen, against what runs ``now`` [nodes, layers, experts], by Eq. (3) and (4)."""
    held = _worth_a_copy(planned(calls, profile, manifest, method), now, calls)
    cluster, size = profile.nodes_as_gpus(), expert_bytes(manifest)
    scale = Scale(profile.pair_s(manifest), calls.window_s, horizon_s)
    verdict = decide(now, held, cluster, calls.frequency, size, scale)
    room = profile.cluster.node_slots(size)
    return Choice(held, verdict, bool((now.sum(axis=(1, 2)) <= room).all() and now.any(axis=0).all()))


def _worth_a_copy(held: PlanArray, now: PlanArray, calls: Seen) -> PlanArray:
    """The plan without new copies on nodes that did not call the expert: plans fill all memory, but a copy has to be
    brought. An expert that nobody else holds keeps its first holder."""
    kept: PlanArray = held & (now | (calls.frequency > 0))
    layer, expert = np.nonzero(~kept.any(axis=0))
    kept[held[:, layer, expert].argmax(axis=0), layer, expert] = True
    return kept


def expert_bytes(manifest: Manifest) -> int:
    """Bytes of the largest expert; all have one size in every family."""
    return max(node.parameter_bytes for layer in range(manifest.layers) for node in manifest.experts(layer))


def places_of(held: PlanArray, profile: Profile, manifest: Manifest, now: Places | None = None) -> Places:
    """Function → node → replicas for a plan; with ``now`` only functions whose nodes change, each with as many
    replicas on a node as it has on its fullest one now: how many there are is another's decision."""
    target: dict[str, dict[str, int]] = {}
    for layer in range(manifest.layers):
        for expert in manifest.experts(layer):
            name = manifest.function_name(expert.id)
            at = [profile.names[node] for node in np.flatnonzero(held[:, layer, expert.expert])]
            before = {node: count for node, count in (now or {}).get(name, {}).items() if count}
            if now is None or set(at) != set(before):
                target[name] = dict.fromkeys(at, max(before.values(), default=1))
    return target


def held_now(places: Places, profile: Profile, manifest: Manifest) -> PlanArray:
    """[nodes, layers, experts] bool of what runs. Raises PlacementError for functions and nodes that the profile or the
    pipeline does not have, so that nothing is planned over them."""
    held: PlanArray = np.zeros((len(profile.names), manifest.layers, len(manifest.experts(0))), dtype=np.bool_)
    for layer in range(manifest.layers):
        for expert in manifest.experts(layer):
            name = manifest.function_name(expert.id)
            if name not in places:
                raise PlacementError(
                    f"{name} is no function of its own here; experts that share a function cannot be placed"
                )
            for node, count in places[name].items():
                if node not in profile.names:
                    raise PlacementError(
                        f"{name} has replicas on node {node!r}; the profile has {', '.join(profile.names)}"
                    )
                held[profile.names.index(node), layer, expert.expert] = count > 0
    return held


def _lines(given: Any, names: tuple[str, ...], where: str) -> Floats:
    """[nodes, nodes] bytes/s."""
    if not isinstance(given, dict):
        return np.full((len(names), len(names)), _number(given, where) * BYTES_OF_MBIT)
    rates = np.full((len(names), len(names)), np.inf)
    np.fill_diagonal(rates, 1.0)  # means nothing
    unknown = sorted(given.keys() - set(names))
    if unknown:
        raise PlacementError(f"{where}: {unknown[0][:40]!r} is no node of this profile")
    for a, one in enumerate(names):
        line = _object(given.get(one), f"{where}: {one}", set(names))
        for b, other in enumerate(names):
            if a != b:
                rates[a, b] = _number(line.get(other), f"{where}: {one} to {other}") * BYTES_OF_MBIT
    return rates


def _object(given: Any, where: str, keys: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise PlacementError(f"{where} is {_shown(given)}; it takes an object")
    unknown = sorted(given.keys() - keys) if keys is not None else []
    if unknown:
        raise PlacementError(f"{where}: {unknown[0][:40]!r} is not known; known are {', '.join(sorted(keys or ()))}")
    return given


def _number(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise PlacementError(f"{where} is {_shown(given)}; it takes a number above 0")
    return float(given)


def _shown(given: Any) -> str:
    return "missing" if given is None else repr(given)[:40]
