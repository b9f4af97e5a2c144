"""What is known of a pipeline's functions: Deployments and pods as they were read last, and what follows from them.

Objects that are kept in the same form are recognised by being the same, so a look costs what has changed since the last
one, and not what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.contract import Configuration
from autoscaler.platforms.kubernetes import deployments as d
from autoscaler.platforms.kubernetes.cache import Kept
from autoscaler.platforms.kubernetes.client import Object
from autoscaler.platforms.kubernetes.conditions import Condition, conditions_of
from autoscaler.platforms.quantities import floors_of, nodes_of
from platform_words.labels import SPEC

UNPACKED = 1000
"""Documents that are kept unpacked. In a controller's first tick nothing is settled, and all 15,000 documents of 5,000
functions would be ten times as large as their packed form."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read from one form of a Deployment."""

    version: str
    configuration: Configuration | None
    community: bool
    """It is OpenFaaS's, and no operator owns it."""
    nodes: int
    """That a placement gives it; 0 without one."""
    before: int
    """Replicas before some were taken back for want of room; 0 where none were."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was read from one form of a function's Deployment and pods."""

    versions: tuple[str, ...]
    obstacles: tuple[Condition, ...]
    in_force: Configuration | None


class Known:
    """Functions of ``pipeline``. What asks may be another thread than what changes."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._deployments: dict[str, Kept] = {}
        self._pods: dict[str, Kept] = {}
        self._pods_of: dict[str, dict[str, Kept]] = {}
        """Function → its pods by name."""
        self._ending: set[str] = set()
        """Pods that end and still take up room."""
        self._read: dict[str, _Read] = {}
        self._configurations: dict[str, Configuration] = {}
        self._outcomes: dict[str, _Outcome] = {}
        """Function → what several parts of a tick ask for while it is not settled."""
        self._settled: dict[str, tuple[str, ...]] = {}
        """Function → versions of its Deployment and pods, of which nothing had to be done."""
        self._changed: set[str] = set()
        """Functions that were not settled, or have changed since."""
        self._unpacked: dict[int, tuple[Kept, Object]] = {}
        """Documents that were asked for last: a function that is not settled is asked for several times in a tick."""

    def look(self, deployments: Iterable[Kept], pods: Iterable[Kept]) -> None:
        """Take over what there is now, all of it."""
        self._changed = set(self.unsettled())
        self._unpacked = {}
        listed = [kept for kept in deployments if kept.pipeline == self._pipeline]
        for kept in listed:
            if self._deployments.get(kept.name) is not kept:
                self.put(kept)
        for name in _gone(self._deployments, listed):
            for kept_of in (self._deployments, self._read, self._configurations, self._settled, self._outcomes):
                kept_of.pop(name, None)
        listed = list(pods)
        for kept in listed:
            if self._pods.get(kept.name) is not kept:
                self.put_pod(kept)
        for name in _gone(self._pods, listed):
            self._forget_pod(name)

    def put(self, kept: Kept) -> None:
        """Take over another form of a Deployment."""
        name, read = kept.name, self._read.get(kept.name)
        if read is None or read.version != kept.version:
            document = kept.document()
            community = not of_this_gateway(document) and not _of_operator(document["metadata"])
            nodes = nodes_of(document["metadata"].get("annotations")) if of_this_gateway(document) else 0
            before = d.before_taken_back(document)
            read = self._read[name] = _Read(kept.version, d.configuration_of(document), community, nodes, before)
        self._deployments[name] = kept
        if read.configuration is None:
            self._configurations.pop(name, None)
        else:
            self._configurations[name] = read.configuration
        self._changed.add(name)

    def put_pod(self, kept: Kept) -> None:
        """Take over another form of a pod."""
        if kept.name in self._pods and self._pods[kept.name].function != kept.function:
            self._forget_pod(kept.name)
        self._pods[kept.name] = kept
        (self._ending.add if kept.ends else self._ending.discard)(kept.name)
        self._pods_of.setdefault(kept.function, {})[kept.name] = kept
        self._changed.add(kept.function)

    def _forget_pod(self, name: str) -> None:
        gone = self._pods.pop(name)
        del self._pods_of[gone.function][name]
        self._ending.discard(name)
        self._changed.add(gone.function)

    def deployment(self, function: str) -> Object | None:
        """The document of a function's Deployment, not to be changed; None where there is no such function."""
        kept = self._deployments.get(function)
        return None if kept is None else self._document(kept)

    def pods(self, function: str) -> list[Object]:
        """Documents of a function's pods, not to be changed."""
        return [self._document(pod) for pod in self._kept_pods(function)]

    def obstacles(self, function: str) -> tuple[Condition, ...]:
        """What stands in the way of a function; nothing where there is none."""
        outcome = self._look_at(function)
        return () if outcome is None else outcome.obstacles

    def in_force(self, function: str) -> Configuration | None:
        """What runs of a function where that is not what should; None where nothing differs."""
        outcome = self._look_at(function)
        return None if outcome is None else outcome.in_force

    def _look_at(self, function: str) -> _Outcome | None:
        deployment, versions = self._deployments.get(function), self.versions(function)
        if deployment is None:
            return None
        outcome = self._outcomes.get(function)
        if outcome is None or outcome.versions != versions:
            document, pods = self._document(deployment), self.pods(function)
            outcome = _Outcome(versions, tuple(conditions_of(document, pods)), d.in_force(document, pods))
            self._outcomes[function] = outcome
        return outcome

    def _document(self, kept: Kept) -> Object:
        unpacked = self._unpacked.get(id(kept))
        if unpacked is None:
            if len(self._unpacked) >= UNPACKED:
                self._unpacked.clear()
            unpacked = self._unpacked[id(kept)] = kept, kept.document()  # what is held here keeps its id
        return unpacked[1]

    def configurations(self) -> dict[str, Configuration]:
        """Configurations of the functions that have one."""
        return dict(self._configurations)

    def floors(self) -> dict[str, int]:
        """Fewest replicas of functions that a placement puts on several nodes; OpenFaaS itself heeds none."""
        return floors_of({name: read.nodes for name, read in self._read.copy().items()})

    def taken_back(self) -> dict[str, int]:
        """Function → replicas that it had before some were taken back for want of room, while it has the others."""
        return {name: read.before for name, read in self._read.copy().items() if read.before}

    def pods_end(self) -> bool:
        """Whether there are pods that end and still take up room."""
        return bool(self._ending)

    def any_of_the_community_edition(self) -> bool:
        return any(read.community for read in self._read.values())

    def versions(self, function: str) -> tuple[str, ...]:
        """Versions of a function's Deployment and pods."""
        kept = self._deployments.get(function)
        return ("" if kept is None else kept.version, *[pod.version for pod in self._kept_pods(function)])

    def settle(self, function: str, versions: tuple[str, ...]) -> None:
        """In these versions nothing has to be done of the function."""
        self._settled[function] = versions

    def unsettled(self) -> list[str]:
        """Functions of which something may have to be done, in order."""
        settled = self._settled
        changed = [name for name in self._changed.copy() if name in self._deployments]
        return sorted(name for name in changed if self.versions(name) != settled.get(name))

    def _kept_pods(self, function: str) -> list[Kept]:
        return list(self._pods_of.get(function, _NOTHING).values())


_NOTHING: Mapping[str, Kept] = {}


def _gone(present: Mapping[str, Kept], listed: Sequence[Kept]) -> set[str]:
    """Names that are known and not found; all that is found is known."""
    return set() if len(present) == len(listed) else present.keys() - {kept.name for kept in listed}


def of_this_gateway(deployment: Object) -> bool:
    """Whether this project's gateway made it."""
    return SPEC in (deployment["metadata"].get("annotations") or {})


def _of_operator(meta: Object) -> bool:
    return any(owner.get("kind") == "Function" for owner in meta.get("ownerReferences") or ())
