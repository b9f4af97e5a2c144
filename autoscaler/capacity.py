"""What a cluster has: cores, memory and tenths of GPUs, as totals and, where they are known, machine by machine.

Part of ``autoscaler.contract``, which exports these names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from autoscaler.checked import Checked, FromOne, FromZero, NotNegative, from_table, read_toml
from autoscaler.configuration import Configuration
from autoscaler.errors import SettingsError

_ROUNDING = 1e-9
"""Cores are sums of fractions such as 0.1, which binary numbers only come near."""


class Resources(NamedTuple):
    """An amount of each resource; what is added up, compared, and left."""

    cores: float = 0.0
    memory_mb: float = 0.0
    """MiB."""
    gpu_tenths: float = 0.0
    """Tenths of a GPU; whole numbers where it is an amount in use."""

    def plus(self, other: Resources) -> Resources:
        return Resources(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Resources) -> Resources:
        return Resources(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Resources:
        return Resources(*(factor * amount for amount in self))

    def within(self, room: Resources) -> bool:
        """Whether no resource is beyond ``room``."""
        return not self.beyond(room)

    def beyond(self, room: Resources) -> tuple[str, ...]:
        """Names of the resources of which this is more than ``room``, in words."""
        return tuple(
            name
            for name, amount, most in zip(("cores", "memory", "GPUs"), self, room, strict=True)
            if amount > most + _ROUNDING * max(1.0, most)
        )


def replica_needs(configuration: Configuration) -> Resources:
    """What one replica takes; a share that is no whole number of tenths takes the next one (GPUs are cut in tenths)."""
    tenths = math.ceil(10 * configuration.gpu_share - 1e-6)
    return Resources(configuration.cpu_cores, float(configuration.memory_mb), float(tenths))


@lru_cache(maxsize=4096)
def needs(configuration: Configuration) -> Resources:
    """What all replicas of a function take, with every standby activated: its cores must be there when it is."""
    count, each = configuration.running + configuration.standbys, replica_needs(configuration)
    return Resources(count * each.cores, count * each.memory_mb, count * each.gpu_tenths)


def total_needs(configurations: Iterable[Configuration]) -> Resources:
    """What several functions take together."""
    cores = memory_mb = tenths = 0.0
    for configuration in configurations:
        each = needs(configuration)
        cores, memory_mb, tenths = cores + each.cores, memory_mb + each.memory_mb, tenths + each.gpu_tenths
    return Resources(cores, memory_mb, tenths)


@dataclass(frozen=True)
class Machine(Checked):
    """One kind of machine, and how many of it there are."""

    title = "machine"
    cores: NotNegative = 0.0
    memory_mb: NotNegative = 0.0
    gpu_tenths: FromZero = 0
    count: FromOne = 1

    @property
    def each(self) -> Resources:
        return Resources(self.cores, self.memory_mb, float(self.gpu_tenths))


@dataclass(frozen=True)
class Capacity(Checked):
    """All that functions may take together. Raises SettingsError.

    With ``machines`` the totals are theirs, and every replica must also have a place on one of them by first fit
    decreasing. That heuristic may refuse what a cleverer placement could pack, and never accepts what has no place.
    """

    title = "capacity"
    cores: NotNegative = 0.0
    memory_mb: NotNegative = 0.0
    """MiB."""
    gpu_tenths: FromZero = 0
    machines: tuple[Machine, ...] = ()

    def __post_init__(self) -> None:
        if self.machines and (self.cores or self.memory_mb or self.gpu_tenths):
            raise SettingsError("capacity: totals or machines, not both; the totals of machines are their sums")
        super().__post_init__()

    @property
    def total(self) -> Resources:
        total = Resources(self.cores, self.memory_mb, float(self.gpu_tenths))
        for machine in self.machines:
            total = total.plus(machine.each.times(machine.count))
        return total

    def left(self, configurations: Iterable[Configuration]) -> Resources:
        """Totals less what ``configurations`` take; negative where they are beyond."""
        return self.total.minus(total_needs(configurations))

    def fits(self, configurations: Iterable[Configuration]) -> bool:
        """Whether there is room for all of ``configurations``."""
        every = tuple(configurations)
        return total_needs(every).within(self.total) and (not self.machines or _packs(every, self.machines))

    def beyond(self, configurations: Iterable[Configuration]) -> tuple[str, ...]:
        """Which resources ``configurations`` take too much of; ``machines`` where only their places are short."""
        every = tuple(configurations)
        names = total_needs(every).beyond(self.total)
        return names if names or self.fits(every) else ("machines",)


def load_capacity(path: Path) -> Capacity:
    """From a TOML file with the totals, or with ``[[machines]]``. Raises SettingsError."""
    return from_table(Capacity, read_toml(path, "capacity"))


def _packs(configurations: Sequence[Configuration], machines: Sequence[Machine]) -> bool:
    """First fit decreasing by the largest part of a machine that a replica takes."""
    room = [machine.each for machine in machines for _ in range(machine.count)]
    largest = Resources(*(max(amounts) for amounts in zip(*room, strict=True)))
    by_size = sorted(configurations, key=lambda one: max(_parts(replica_needs(one), largest)), reverse=True)
    for configuration in by_size:
        need = replica_needs(configuration)
        place = 0
        for _ in range(configuration.running + configuration.standbys):
            while place < len(room) and not need.within(room[place]):
                place += 1
            if place == len(room):
                return False
            room[place] = room[place].minus(need)
    return True


def _parts(need: Resources, machine: Resources) -> list[float]:
    return [amount / most if most else 0.0 for amount, most in zip(need, machine, strict=True)]
