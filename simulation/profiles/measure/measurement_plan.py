"""What to measure: one node of each kind, and the points at which.

The whole product of tokens × CPU share × memory × concurrency would take hours, so five families of points cover it,
each along the axes on which it can move: *alone* (single calls to an idle replica) and *busy* (one call always in
flight) over tokens × share; *concurrency* over tokens × share × concurrency; *surface* (open loop at one fixed rate)
over coupled memory × concurrency, as in the paper's Fig. 3(a); *memory* over memory × concurrency with a replica
started again under each limit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Literal

from pydantic import Field

from autoscaler.checked import Checked, FromOne, Positive
from moe.manifest import Manifest, Node
from simulation.profiles.model.errors import ProfileError

Family = Literal["alone", "busy", "concurrency", "surface", "memory"]
Sizes = Annotated[tuple[FromOne, ...], Field(min_length=1)]
Shares = Annotated[tuple[Positive, ...], Field(min_length=1)]
Loop = Literal["paced", "closed", "open"]

RESTART_S = 0.4
"""About what it takes to end a replica and start another, in a plan."""
COUPLED_MIB_PER_CORE = 1769
"""Memory that comes with one core where memory drives CPU: AWS Lambda's published ratio (1,769 MB for one vCPU)."""


@dataclass(frozen=True)
class ProfileSettings(Checked):
    """Axes and effort of a profile. Shares are real cores: configured cores × ``cpu_scale``."""

    error = ProfileError
    tokens: Sizes = (1, 8, 32, 128, 512)
    shares: Shares = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
    busy_tokens: Sizes = (8, 32, 128)
    busy_shares: Shares = (0.06, 0.25, 1.0)
    concurrencies: Sizes = (2, 4, 8)
    surface_shares: Shares = (0.06, 0.12, 0.25, 0.5, 1.0)
    surface_concurrencies: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 10)
    surface_tokens: int = 32
    surface_load: float = 0.75
    """Offered load of the surface: this part of what one core quarter serves one call at a time."""
    memory_mib: Sizes = (8, 12, 16, 24, 32, 48, 64, 128)
    memory_tokens: int = 128
    memory_concurrencies: tuple[int, ...] = (1, 8)
    ample_mib: int = 1024
    """Memory limit of every point that does not ask about memory."""
    repeats: FromOne = 3
    seconds_per_point: Positive = 0.8
    surface_seconds: float = 2.0
    calls_per_point: FromOne = 300
    longest_call_s: Positive = 2.0
    """Points whose calls are expected to take longer are left out, and counted."""
    transitions: FromOne = 10
    """Repeats of each cold start, drain and resize."""
    volley_rounds: int = 10
    """Rounds of concurrent requests in each repeat: lone ones vary by a tenth from round to round, and what concurrency
    costs is a few hundredths."""
    idle_rounds: int = 10
    """Rounds of lone requests after idle gaps in each repeat, for the same reason."""
    quiet_cores: float = 0.5
    """A point during which other processes kept more cores than this busy is measured again ..."""
    retries: int = 2
    """... at most so often; the least_disturbed is kept."""
    most_minutes: float = 0.0
    """Repeats beyond the first stop when so much time has passed; 0 is no limit."""
    cpu_scale: Positive = 1.0
    cpu_period_ms: Annotated[float, Field(ge=1, le=1000)] = 10.0
    """CFS period that limits are asked for with."""
    seed: int = 0


QUICK = ProfileSettings(
    tokens=(1, 32, 128),
    shares=(0.12, 0.5, 1.0),
    busy_tokens=(32,),
    busy_shares=(0.25, 1.0),
    concurrencies=(2, 4),
    surface_shares=(0.12, 0.25, 1.0),
    surface_concurrencies=(1, 2, 4),
    memory_mib=(4, 64),
    repeats=1,
    seconds_per_point=0.12,
    surface_seconds=0.3,
    calls_per_point=60,
    longest_call_s=0.5,
    transitions=2,
    volley_rounds=3,
    idle_rounds=3,
    retries=0,
)


@dataclass(frozen=True)
class NodeClass:
    """Nodes with the same program and sizes; ``node`` stands for all ``members``."""

    node: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One thing to measure. ``share`` is real cores; ``rate_rps`` is 0 except in an open loop."""

    node: str
    family: Family
    loop: Loop
    tokens: int
    share: float
    memory_mib: int
    concurrency: int
    rate_rps: float = 0.0
    repeat: int = 0


@dataclass(frozen=True)
class Plan:
    """Points in the order in which to measure them, and how many were left out as too slow."""

    live: tuple[Point, ...]
    """Measured on running replicas, resized in place."""
    memory: tuple[Point, ...]
    """Measured on replicas started under the point's memory limit; grouped by node and limit."""
    left_out: int = 0
    expected_s: Mapping[Point, float] = field(default_factory=dict, compare=False)
    """By point, ``repeat`` 0."""

    def seconds(self, point: Point) -> float:
        """About how long a point takes to measure."""
        return self.expected_s[replace(point, repeat=0)]

    @property
    def total_s(self) -> float:
        return sum(self.seconds(point) for point in (*self.live, *self.memory))


def node_classes(manifest: Manifest) -> tuple[NodeClass, ...]:
    """One class for each kind of node: same kind, tensors, weights and arithmetic. Segments first, in order."""
    groups: dict[object, list[Node]] = {}
    for node in manifest.nodes:
        key = (node.kind, node.inputs, node.outputs, node.parameter_bytes, node.flops_per_token)
        groups.setdefault(key, []).append(node)
    return tuple(NodeClass(group[0].id, tuple(node.id for node in group)) for group in groups.values())


def make_plan(
    classes: Sequence[NodeClass],
    experts: frozenset[str],
    settings: ProfileSettings,
    alone_s: Mapping[tuple[str, int], float],
) -> Plan:
    """All points, every repeat in its own random order. ``experts``: the nodes that are experts.

    ``alone_s``: seconds of one call at a full core by (node, tokens), from a short pilot; it decides which points are
    too slow, and the rate of the open loop.
    """
    wanted: list[Point] = []
    for entry in classes:
        wanted += _alone(entry.node, settings) + _concurrency(entry.node, settings)
        if entry.node in experts:
            wanted += _surface(entry.node, settings, alone_s[entry.node, settings.surface_tokens])
    kept = [point for point in wanted if _call_s(point, alone_s) <= settings.longest_call_s]
    memory = [point for entry in classes for point in _memory(entry.node, settings)]
    expected = {point: expected_s(point, settings, alone_s[point.node, point.tokens]) for point in (*kept, *memory)}
    order = random.Random(settings.seed)
    live: list[Point] = []
    for repeat in range(settings.repeats):
        order.shuffle(kept)
        live += [replace(point, repeat=repeat) for point in kept]
    limits = sorted({(point.node, point.memory_mib) for point in memory})
    order.shuffle(limits)
    grouped = [
        replace(point, repeat=repeat)
        for limit in limits
        for repeat in range(settings.repeats)
        for point in memory
        if (point.node, point.memory_mib) == limit
    ]
    return Plan(tuple(live), tuple(grouped), len(wanted) - len(kept), expected)


def expected_s(point: Point, settings: ProfileSettings, alone_s: float) -> float:
    """About how long a point takes to measure."""
    if point.loop == "open":
        return settings.surface_seconds * 1.3
    call_s = alone_s / min(1.0, point.share) * point.concurrency
    pause_s = 0.03 if point.loop == "paced" else 0.0
    start_s = RESTART_S if point.family == "memory" else 0.0
    calls_s = settings.calls_per_point * (call_s / point.concurrency + pause_s)
    return min(calls_s, max(settings.seconds_per_point, 4 * (call_s + pause_s))) + 2 * call_s + start_s


def axis_tokens(settings: ProfileSettings) -> tuple[int, ...]:
    """Every number of tokens that some point has, ascending."""
    return tuple(sorted({*settings.tokens, *settings.busy_tokens, settings.surface_tokens, settings.memory_tokens}))


def coupled_mib(share: float) -> int:
    """Memory limit that brings ``share`` cores where memory drives CPU."""
    return max(1, round(share * COUPLED_MIB_PER_CORE))


def _call_s(point: Point, alone_s: Mapping[tuple[str, int], float]) -> float:
    if point.loop == "open":
        return 0.0
    return alone_s[point.node, point.tokens] / min(1.0, point.share) * point.concurrency


def _alone(node: str, settings: ProfileSettings) -> list[Point]:
    axes = list(product(settings.tokens, settings.shares))
    alone = [Point(node, "alone", "paced", tokens, share, settings.ample_mib, 1) for tokens, share in axes]
    return alone + [Point(node, "busy", "closed", tokens, share, settings.ample_mib, 1) for tokens, share in axes]


def _concurrency(node: str, settings: ProfileSettings) -> list[Point]:
    return [
        Point(node, "concurrency", "closed", tokens, share, settings.ample_mib, concurrency)
        for tokens, share, concurrency in product(settings.busy_tokens, settings.busy_shares, settings.concurrencies)
    ]


def _surface(node: str, settings: ProfileSettings, alone_s: float) -> list[Point]:
    rate = settings.surface_load * 0.25 / alone_s
    return [
        Point(node, "surface", "open", settings.surface_tokens, share, coupled_mib(share), concurrency, rate)
        for share, concurrency in product(settings.surface_shares, settings.surface_concurrencies)
    ]


def _memory(node: str, settings: ProfileSettings) -> list[Point]:
    return [
        Point(node, "memory", "closed", settings.memory_tokens, 1.0, limit, concurrency)
        for limit, concurrency in product(settings.memory_mib, settings.memory_concurrencies)
    ]
