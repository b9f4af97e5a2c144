"""How much of what was asked for a cluster has room for, read from a function's obstacles; computes only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.contract import Bound, Configuration
from autoscaler.platforms.kubernetes.client import Object
from autoscaler.platforms.kubernetes.conditions import Condition, ConditionKind, leaving
from autoscaler.platforms.kubernetes.deployments import has_limits, least_replicas, ordered, pods_of
from platform_words.live import Live
from platform_words.resources import GPU

DEFERRED_LIMIT_S = 30.0
"""A resize that its node has no room for now is waited for this long; then the replicas are placed again."""
ENDED_S = 60.0
"""A pod that ended so lately may have left room that the scheduler has not given to others yet."""
_RESIZING = ("deferred", "infeasible", "resize failed")
_NAMES = re.compile(r"requested: .*?, used: |maximum \S+ usage per ")
_AXES = {"memory": "memory_mb", "cpu": "cpu_cores", GPU: "gpu_share"}


@dataclass(frozen=True)
class Short:
    """No room for all replicas that were asked for, but for ``most``."""

    kind: ConditionKind
    most: int
    message: str


class Order(NamedTuple):
    """An order of limits: those before and after it, and what it asked for."""

    before: Live
    after: Live
    configured: Configuration | None
    target: Configuration


class Patience:
    """Since when a replica has to wait for a node so that there is no room for it: ``wait_s``, and three times that
    while pods that end still take up room, or did within the last minute. Pods on lost nodes may end for ever."""

    def __init__(self, wait_s: float, clock: Callable[[], float]) -> None:
        self._wait_s, self._clock = wait_s, clock
        self._ended_s = -math.inf

    def ripe_s(self, pods_end: bool) -> float:
        """Unix time; ``pods_end``: whether pods end now."""
        now_s = self._clock()
        if pods_end:
            self._ended_s = now_s
        return now_s - self._wait_s * (3 if now_s - self._ended_s < ENDED_S else 1)


def short_of(deployment: Object, pods: Sequence[Object], obstacles: Sequence[Condition], ripe_s: float) -> Short | None:
    """Whether fewer replicas run than were asked for: at once for want of quota; for want of nodes, or where new pods
    are refused for another reason, once that lasts since ``ripe_s`` (Unix time) or longer. A roll-out's additional
    replicas and standbys are none that were asked for, and the fewest that the function's label asks for are never too
    many."""
    status, wanted = deployment.get("status", {}), ordered(deployment)
    least = least_replicas(deployment)
    waiting = {one.pod: one for one in obstacles if one.kind == "unschedulable"}
    for one in waiting.values():
        if one.since_s is not None and one.since_s <= ripe_s:
            placed = sum(not leaving(pod) and pod["metadata"]["name"] not in waiting for pod in pods)
            most = max(placed, least)
            return Short("unschedulable", most, one.message) if most < wanted else None
    there = int(status.get("replicas", 0))
    rolling = status.get("updatedReplicas", 0) < there
    refused = next((one for one in obstacles if _refuses_pods(one, ripe_s)), None)
    if refused is not None and not rolling and there > 0 and max(there, least) < wanted:
        return Short(refused.kind, max(there, least), refused.message)
    return None


def _refuses_pods(condition: Condition, ripe_s: float) -> bool:
    """A quota that is used up stays so; another refusal may be that of a webhook which is away for a moment."""
    lasts = condition.since_s is not None and condition.since_s <= ripe_s
    return condition.kind == "quota" or (condition.kind == "refused" and lasts)


def wants_new_placement(condition: Condition, now_s: float) -> bool:
    """Whether only other nodes can help: never on this one, or not for a long while."""
    waited_s = 0.0 if condition.since_s is None else now_s - condition.since_s
    return condition.kind == "infeasible" or (condition.kind == "deferred" and waited_s > DEFERRED_LIMIT_S)


def stuck(obstacles: Iterable[Condition], ripe_s: float) -> Condition | None:
    """What keeps a roll-out's new replicas from coming, since ``ripe_s`` or longer; None where nothing does."""
    kinds = ("unschedulable", "quota", "refused")
    waiting = (one for one in obstacles if one.kind in kinds)
    return next((one for one in waiting if one.since_s is not None and one.since_s <= ripe_s), None)


def complete(deployment: Object, pods: Sequence[Object], live: Live) -> bool:
    """Whether all replicas are on nodes and have their limits: what was ordered came about."""
    name, staying = deployment["metadata"]["name"], [pod for pod in pods if not leaving(pod)]
    placed = sum("nodeName" in pod["spec"] for pod in staying)
    return placed >= pods_of(deployment) and all(has_limits(pod, name, live) for pod in staying)


def in_the_way(deployment: Object, obstacles: Sequence[Condition]) -> Bound | None:
    """No growth besides what is waited for: of limits while a resize waits, of replicas while one does."""
    kinds = {one.kind for one in obstacles}
    resizing = [kind for kind in _RESIZING if kind in kinds]
    waiting = [kind for kind in ("unschedulable", "quota", "refused") if kind in kinds]
    if not resizing and not waiting:
        return None
    bound = Bound(", ".join((*resizing, *waiting)))
    if resizing:
        bound = bound._replace(memory_mb=0.0, cpu_cores=0.0, gpu_share=0.0)
    return bound._replace(replicas=ordered(deployment)) if waiting else bound


def refused_limits(kind: ConditionKind, present: Configuration | None, refused: Configuration, said: str) -> Bound:
    """Limits, from a refusal's words and what was asked for, that are not asked for again. The words of a quota
    (``requested: limits.memory=1Gi, used: …``) and of a limit range (``maximum memory usage per Container is …``) name
    what there is too little of; whatever else grew may be had."""
    bound = Bound.below(present, refused, kind)
    words = [one.group() for one in _NAMES.finditer(said)]
    named = {axis for resource, axis in _AXES.items() if any(re.search(rf"\b{resource}\b", one) for one in words)}
    limits = {axis: getattr(bound, axis) if axis in named else math.inf for axis in _AXES.values()}
    return Bound(kind, **limits) if min(limits.values()) < math.inf else bound


def refused_resize(present: Configuration | None, refused: Configuration) -> Bound:
    """Limits that kubelets could not bring running replicas to: what grew, and the memory that was to shrink."""
    bound = Bound.below(present, refused, "resize failed")
    shrunk = present is not None and refused.memory_mb < present.memory_mb
    return bound._replace(least_memory_mb=refused.memory_mb + 1) if shrunk else bound


def failed_resize(obstacles: Iterable[Condition], now_s: float) -> Condition | None:
    """A resize that a kubelet tries in vain for long; meanwhile it carries out no other one of that pod either."""
    failed = (one for one in obstacles if one.kind == "resize failed" and one.since_s is not None)
    return next((one for one in failed if now_s - (one.since_s or 0.0) > DEFERRED_LIMIT_S), None)


def gives_back(present: Configuration, target: Configuration) -> bool:
    """Whether something of the present configuration is for others now."""
    return (
        target.replicas < present.replicas
        or target.memory_mb < present.memory_mb
        or target.cpu_cores < present.cpu_cores
        or target.gpu_share < present.gpu_share
    )
