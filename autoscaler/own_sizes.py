"""Which sizes of functions a controller brought about itself, and which somebody else deployed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.contract import Configuration, Decision

Size = tuple[int, float, float, int]


class OwnSizes:
    """By function what was met first or redeployed, and what was ordered since: an order that fails, or is taken back
    later, leads to one of these."""

    def __init__(self) -> None:
        self._known: dict[str, set[Size]] = {}

    def redeployed(self, present: Mapping[str, Configuration]) -> frozenset[str]:
        """Functions whose size is none of the known ones; it is from now on the only known one."""
        changed = {name for name, one in present.items() if size_of(one) not in self._known.get(name, {size_of(one)})}
        for name, one in present.items():
            if name in changed or name not in self._known:
                self._known[name] = {size_of(one)}
        return frozenset(changed)

    def ordered(self, decisions: Iterable[Decision]) -> None:
        """Orders that were given, whatever became of them."""
        for one in decisions:
            if one.changes and one.target is not None:
                self._known.setdefault(one.function, set()).add(size_of(one.target))


def size_of(configuration: Configuration) -> Size:
    """All but replicas and standbys, in the steps in which platforms have it."""
    one = configuration
    return one.memory_mb, round(one.cpu_cores, 3), round(one.gpu_share, 1), one.concurrency
