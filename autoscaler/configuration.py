"""φ, Φ and Eq. (2): one function's configuration, the space of all allowed ones, and the memory it needs.

Part of ``autoscaler.contract``, which exports these names; equations are those of the sMoE paper, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoscaler.errors import ConfigurationError
from functions.dispatch.activation import Burst

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Configuration:
    """φ of one function: memory, CPU cores or GPU share (exactly one of them, Eq. (4)), replicas, concurrency."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}  # noqa: RUF012 (for files that hold configurations)
    memory_mb: int
    """Memory limit of a replica in MiB."""
    cpu_cores: float
    """CPU limit of a replica; 0 when it has a GPU share."""
    gpu_share: float
    """Share of one GPU, 0.1 to 1.0; 0 when it has CPU cores."""
    replicas: int
    """Replicas wanted; 0 = scaled to zero (only outside the paper's space)."""
    concurrency: int
    """Calls a replica takes at once; 0 = no limit (only outside the paper's space)."""
    burst: Burst | None = None
    """Standbys on top of the replicas, and whether those always run; None: there are none. It is no axis of Φ."""

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_cores < math.inf or not 0 <= self.gpu_share <= 1:
            raise ConfigurationError(
                f"cpu_cores is {self.cpu_cores} and gpu_share {self.gpu_share}; allowed are cores of 0 or more "
                f"and a share of 0 to 1"
            )
        if (self.cpu_cores > 0) == (self.gpu_share > 0):
            raise ConfigurationError(
                f"a configuration has CPU cores or a GPU share, not both and not neither (Eq. 4); "
                f"it got {self.cpu_cores} cores and {self.gpu_share} of a GPU"
            )
        for name, least in (("memory_mb", 1), ("replicas", 0), ("concurrency", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigurationError(f"{name} is {value!r}; allowed are whole numbers from {least}")

    def with_replicas(self, replicas: int) -> Configuration:
        return replace(self, replicas=replicas)

    @property
    def running(self) -> int:
        """Replicas that always run."""
        return self.replicas if self.burst is None else self.burst.running(self.replicas)

    @property
    def standbys(self) -> int:
        """Replicas that are started and wait; those that sleep between requests are among them."""
        return 0 if self.burst is None else self.burst.waiting(self.replicas)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What Eq. (2) asks of a function's memory: ``alpha · memory >= M_e + 2 · D · P / replicas``."""

    runtime_bytes: int
    """M_e: weights and libraries."""
    bytes_per_token: int
    """D: size of one token on the way (the larger of in and out)."""
    peak_tokens: float
    """P: peak number of input tokens of the window, over all replicas."""
    alpha: float = 0.9
    """Share of the limit that may be used."""

    def required_mb(self, replicas: int) -> float:
        """Least memory in MiB for this many replicas."""
        need_bytes = self.runtime_bytes + 2 * self.bytes_per_token * self.peak_tokens / max(1, replicas)
        return need_bytes / self.alpha / MIB

    def holds(self, configuration: Configuration) -> bool:
        """Whether ``configuration`` satisfies Eq. (2)."""
        return configuration.memory_mb >= self.required_mb(configuration.replicas)


class Bound(NamedTuple):
    """What a platform cannot give one function for now, so that nobody plans with it.

    Limits are bounded from the refused value on: half of it may still be had.
    """

    why: str
    """In words."""
    replicas: float = math.inf
    """Most replicas that can be brought about; more are not worth waiting for, even where they were asked for."""
    memory_mb: float = math.inf
    """Growth to this memory of a replica, or beyond, is refused."""
    cpu_cores: float = math.inf
    """Likewise."""
    gpu_share: float = math.inf
    """Likewise."""
    least_memory_mb: float = 0.0
    """A smaller memory limit than this is refused."""

    def brought_about(self, now: Configuration, least: int) -> Configuration:
        """``now`` without replicas that cannot be brought about, and never below ``least`` of them."""
        most = max(self.replicas, least)
        return now if now.replicas <= most else now.with_replicas(int(most))

    def possible(self, now: Configuration, target: Configuration) -> Configuration:
        """``target``, on each axis where it grows too far as ``now``."""
        grown = now.memory_mb < target.memory_mb >= self.memory_mb
        shrunk = now.memory_mb > target.memory_mb < self.least_memory_mb
        memory_mb = now.memory_mb if grown or shrunk else target.memory_mb
        refused = (
            now.cpu_cores < target.cpu_cores >= self.cpu_cores or now.gpu_share < target.gpu_share >= self.gpu_share
        )
        compute = now if refused else target
        replicas = int(min(target.replicas, max(now.replicas, self.replicas)))
        return Configuration(
            memory_mb, compute.cpu_cores, compute.gpu_share, replicas, target.concurrency, target.burst
        )

    def refuses(self, configuration: Configuration) -> bool:
        """Whether this is a configuration that nothing could grow to."""
        return (
            configuration.replicas > self.replicas
            or not self.least_memory_mb <= configuration.memory_mb < self.memory_mb
            or configuration.cpu_cores >= self.cpu_cores
            or configuration.gpu_share >= self.gpu_share
        )

    def and_also(self, other: Bound) -> Bound:
        """Both at once."""
        why = self.why if other.why == self.why else f"{self.why}, {other.why}"
        mine, theirs = self[1:-1], other[1:-1]
        tighter = Bound(why, *(min(pair) for pair in zip(mine, theirs, strict=True)))
        return tighter._replace(least_memory_mb=max(self.least_memory_mb, other.least_memory_mb))

    @staticmethod
    def below(present: Configuration | None, refused: Configuration, why: str) -> Bound:
        """On limits, from a configuration that was refused: what it would have made more of, of ``present``."""

        def grown(axis: str) -> float:
            value: float = getattr(refused, axis)
            return value if value > (0 if present is None else getattr(present, axis)) else math.inf

        return Bound(why, math.inf, grown("memory_mb"), grown("cpu_cores"), grown("gpu_share"))


@dataclass(frozen=True)
class ConfigurationSpace:
    """Φ: the allowed configurations, a regular grid. Defaults are the paper's, 203,520 per expert.

    A sequence: ``space[i]`` and ``space.index(configuration)`` number the configurations with memory as the outermost
    axis, then CPU cores before GPU shares, then replicas, concurrency innermost; standbys do not count. Raises
    ConfigurationError for bounds that hold no configuration.
    """

    memory_min_mb: int = 128
    memory_max_mb: int = 10240
    memory_step_mb: int = 64
    cpu_cores: tuple[float, ...] = (1, 2, 3, 4, 5, 6)
    gpu_shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    replicas_min: int = 1
    replicas_max: int = 8
    concurrency_min: int = 1
    concurrency_max: int = 10

    def __post_init__(self) -> None:
        rules = (
            ("memory_step_mb", self.memory_step_mb, self.memory_step_mb >= 1, "1 or more"),
            ("memory_min_mb", self.memory_min_mb, 1 <= self.memory_min_mb <= self.memory_max_mb, "1 to memory_max_mb"),
            ("cpu_cores", self.cpu_cores, bool(self.cpu_cores or self.gpu_shares), "some cores or some GPU shares"),
            ("cpu_cores", self.cpu_cores, all(0 < x < math.inf for x in self.cpu_cores), "numbers above 0"),
            ("gpu_shares", self.gpu_shares, all(0 < x <= 1 for x in self.gpu_shares), "numbers above 0, at most 1"),
            ("replicas_min", self.replicas_min, 1 <= self.replicas_min <= self.replicas_max, "1 to replicas_max"),
            (
                "concurrency_min",
                self.concurrency_min,
                1 <= self.concurrency_min <= self.concurrency_max,
                "1 to concurrency_max",
            ),
        )
        for key, value, holds, allowed in rules:
            if not holds:
                raise ConfigurationError(f"{key} of the configuration space is {value}; allowed: {allowed}")

    @property
    def memory_sizes_mb(self) -> range:
        return range(self.memory_min_mb, self.memory_max_mb + 1, self.memory_step_mb)

    @property
    def resources(self) -> tuple[tuple[float, float], ...]:
        """(CPU cores, GPU share) in order; one of the two is 0."""
        return tuple((cores, 0.0) for cores in self.cpu_cores) + tuple((0.0, share) for share in self.gpu_shares)

    @property
    def replica_counts(self) -> range:
        return range(self.replicas_min, self.replicas_max + 1)

    @property
    def concurrencies(self) -> range:
        return range(self.concurrency_min, self.concurrency_max + 1)

    def __len__(self) -> int:
        return len(self.memory_sizes_mb) * len(self.resources) * len(self.replica_counts) * len(self.concurrencies)

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration in the order of the numbering."""
        for memory_mb in self.memory_sizes_mb:
            for cores, share in self.resources:
                for replicas in self.replica_counts:
                    for concurrency in self.concurrencies:
                        yield Configuration(memory_mb, cores, share, replicas, concurrency)

    def __getitem__(self, number: int) -> Configuration:
        """The configuration with this number, 0 to ``len - 1``. Raises IndexError."""
        if not 0 <= number < len(self):
            raise IndexError(f"the configuration space has numbers 0 to {len(self) - 1}, not {number}")
        number, concurrency = divmod(number, len(self.concurrencies))
        number, replicas = divmod(number, len(self.replica_counts))
        memory, resource = divmod(number, len(self.resources))
        cores, share = self.resources[resource]
        return Configuration(
            self.memory_sizes_mb[memory],
            cores,
            share,
            self.replica_counts[replicas],
            self.concurrencies[concurrency],
        )

    def index(self, configuration: Configuration) -> int:
        """The number of a configuration of the space. Raises ConfigurationError for any other."""
        if configuration not in self:
            raise ConfigurationError(f"{configuration} is not in the configuration space")
        number = self.memory_sizes_mb.index(configuration.memory_mb)
        number = number * len(self.resources) + self.resources.index((configuration.cpu_cores, configuration.gpu_share))
        number = number * len(self.replica_counts) + self.replica_counts.index(configuration.replicas)
        return number * len(self.concurrencies) + self.concurrencies.index(configuration.concurrency)

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, Configuration)
            and value.memory_mb in self.memory_sizes_mb
            and (value.cpu_cores, value.gpu_share) in self.resources
            and value.replicas in self.replica_counts
            and value.concurrency in self.concurrencies
        )

    def nearest(self, desired: Configuration) -> Configuration:
        """The configuration of the space nearest to ``desired``: memory rounded up, other axes to the nearest allowed
        value, standbys as they are."""
        cores, share = 0.0, 0.0
        if self.cpu_cores and (desired.cpu_cores > 0 or not self.gpu_shares):
            cores = min(self.cpu_cores, key=lambda value: abs(value - desired.cpu_cores))
        else:
            share = min(self.gpu_shares, key=lambda value: abs(value - desired.gpu_share))
        return Configuration(
            self.memory_at_least_mb(desired.memory_mb) or self.memory_sizes_mb[-1],
            cores,
            share,
            min(max(desired.replicas, self.replicas_min), self.replicas_max),
            min(max(desired.concurrency, self.concurrency_min), self.concurrency_max),
            desired.burst,
        )

    def least_memory_mb(self, need: MemoryNeed, replicas: int) -> int | None:
        """Smallest memory of the space that satisfies Eq. (2), or None where none does."""
        return self.memory_at_least_mb(need.required_mb(replicas))

    def mask(self, need: MemoryNeed) -> Mapping[int, int | None]:
        """Eq. (2) over the whole space: replicas → least memory in MiB (None: no memory of the space is enough).

        The mask couples only these two axes, so it is all that a policy needs to filter its actions.
        """
        return {replicas: self.least_memory_mb(need, replicas) for replicas in self.replica_counts}

    def memory_at_least_mb(self, memory_mb: float) -> int | None:
        """Smallest memory of the space that is no less, or None."""
        steps = max(0, math.ceil((memory_mb - self.memory_min_mb) / self.memory_step_mb))
        sizes = self.memory_sizes_mb
        return sizes[steps] if steps < len(sizes) else None
