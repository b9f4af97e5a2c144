"""The platform itself: reads all functions of a pipeline, applies configurations, keeps replicas in line with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from autoscaler.contract import Configuration
from autoscaler.errors import FunctionGoneError, PlatformError
from autoscaler.platform.kubernetes import deployments as d
from autoscaler.platform.kubernetes.cache import Kept, WatchCache, trimmed_deployment, trimmed_pod
from autoscaler.platform.kubernetes.client import MERGE, Event, KubernetesClient, Object, RefusedError
from autoscaler.platform.kubernetes.conditions import Condition, ConditionKind, conditions_of, leaving
from autoscaler.platform.kubernetes.known import Known, own

log = logging.getLogger("smoe.autoscaler.kubernetes")

RESIZE_SINCE = (1, 33)
QUOTA_HOLD_S = 60.0
"""After a quota was hit, a function is not grown past what it has for this long."""
DEFERRED_LIMIT_S = 30.0
"""A resize that its node has no room for now is waited for this long; then the replicas are placed anew."""
REFUSED_S = 60.0
"""A refusal is shown for this long after it was last met, so that every scrape sees it."""
COMMUNITY = (
    "OpenFaaS Community Edition: its own controller holds replicas between 1 and 5 and allows 15 functions; GPU shares "
    "and limits set here last until the next deployment of the function, and are set again then"
)


class KubernetesPlatform:
    """:class:`autoscaler.contract.Platform` for the functions of ``pipeline`` (label ``smoe.pipeline``).

    ``configurations`` only reads; with :meth:`follow` from caches that watches keep, where they are whole. ``keep``,
    once a tick, is the level-triggered part: it brings every replica in line with its function, also new ones, and
    answers what it finds in the way. ``clock`` gives Unix time.
    """

    def __init__(
        self,
        client: KubernetesClient,
        pipeline: str,
        *,
        gpu: d.GpuSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._gpu = gpu or d.GpuSettings()
        self._clock = clock
        self._version: tuple[int, int] | None = None
        self._known = Known(pipeline)
        self._read = False
        self._wished: dict[str, d.Live] = {}
        """What this controller asked for on Deployments whose owner may forget it."""
        self._held: dict[str, tuple[int, float]] = {}
        """Function over quota → replicas that fitted, and until when no more are asked for."""
        self._refused: dict[str, tuple[Condition, float]] = {}
        """Function → what was refused of it, and when that was met last."""
        self._caches: tuple[WatchCache, WatchCache] | None = None

    def follow(self) -> None:
        """Keep Deployments and pods by watches from now on, instead of listing them at each look."""
        kinds = (
            ("deployments", d.FUNCTION_LABEL, trimmed_deployment),
            ("pods", f"{d.PIPELINE_LABEL}={self._pipeline}", trimmed_pod),
        )
        first, second = (
            WatchCache(_Kind(self._client, resource, selector), trimmed, time.monotonic)
            for resource, selector, trimmed in kinds
        )
        self._caches = first, second
        for cache in self._caches:
            cache.start()

    def behind(self) -> bool:
        """Whether the next look would list, because a watch is not whole now."""
        return any(cache.objects() is None for cache in self._caches or ())

    def close(self) -> None:
        """End the watches."""
        for cache in self._caches or ():
            cache.close()
        self._caches = None

    def configurations(self) -> Mapping[str, Configuration]:
        """Functions without a memory limit, or without a CPU or GPU limit, have no configuration and are left out."""
        self._read_all()
        return self._known.configurations()

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        """Raises FunctionGoneError, UnreachableError, and PlatformError for what the API server refuses."""
        if not self._read:
            self._read_all()
        deployment = self._known.deployment(function)
        before = None if deployment is None else d.live_of(deployment)
        if deployment is None or before is None:
            raise FunctionGoneError(f"there is no function {function} of pipeline {self._pipeline} in this namespace")
        self._check_quota(function, target)
        refused: RefusedError | None = None
        try:
            if d.configuration_of(deployment) != replace(target, replicas=int(deployment["spec"].get("replicas", 1))):
                self._change(function, before, d.wanted(before, target))
        except RefusedError as error:
            refused = error
        try:
            self._scale_where_allowed(function, target.replicas, refused)
        except RefusedError as error:
            refused = refused or error
        if refused is not None:
            self._refuse(function, refused)
            raise refused
        self._refused.pop(function, None)

    def keep(self) -> None:
        """Bring replicas in line, and answer what stands in the way. One function's trouble is not another's.

        Raises UnreachableError.
        """
        for function in self._known.unsettled():
            try:
                self._keep(function)
            except FunctionGoneError:
                continue
            except RefusedError as error:
                self._refuse(function, error)

    def conditions(self) -> tuple[Condition, ...]:
        """What stood in the way of which function when it was last read, and what was refused since."""
        seen = [condition for function in self._known.unsettled() for condition in self._obstacles(function)]
        now_s = self._clock()
        refused = (condition for _, (condition, met_s) in sorted(self._refused.items()) if now_s - met_s < REFUSED_S)
        return (*seen, *refused)

    def notes(self) -> tuple[str, ...]:
        """What this platform cannot do here, in sentences."""
        notes = []
        if not self._resizes:
            notes.append("this Kubernetes cannot resize pods (1.33 can): changed limits are rolled out")
        if self._known.any_of_the_community_edition():
            notes.append(COMMUNITY)
        return tuple(notes)

    # inside

    def _deployment(self, function: str) -> Object:
        found = self._known.deployment(function)
        if found is None:
            raise FunctionGoneError(f"function {function} was deleted meanwhile")
        return found

    def _obstacles(self, function: str) -> Iterator[Condition]:
        deployment = self._known.deployment(function)
        return iter(()) if deployment is None else conditions_of(deployment, self._known.pods(function))

    @property
    def _resizes(self) -> bool:
        if self._version is None:
            self._version = self._client.version()
        return self._version >= RESIZE_SINCE

    def _read_all(self) -> None:
        deployments, pods = (None, None) if self._caches is None else (cache.objects() for cache in self._caches)
        if deployments is None:
            listed = self._client.deployments(d.FUNCTION_LABEL)
            deployments = [Kept.of(trimmed_deployment(document)) for document in listed]
        if pods is None:
            listed = self._client.pods(f"{d.PIPELINE_LABEL}={self._pipeline}")
            pods = [Kept.of(trimmed_pod(document)) for document in listed]
        self._known.look(deployments, pods)
        self._read = True

    def _check_quota(self, function: str, target: Configuration) -> None:
        most, until_s = self._held.get(function, (0, 0.0))
        if self._clock() >= until_s:
            self._held.pop(function, None)
        elif target.replicas > most:
            raise PlatformError(f"function {function}: the namespace's quota has room for {most} replicas, not more")

    def _change(self, function: str, before: d.Live, after: d.Live) -> None:
        deployment = self._deployment(function)
        if not own(deployment):
            self._wished[function] = after
        resized = (before.limits, before.requests) != (after.limits, after.requests)
        settled = before.max_inflight == after.max_inflight or d.takes_live_settings(deployment)
        if settled and (not resized or (self._resizes and d.only_resizes(before, after))):
            self._change_live(function, before, after)
        else:
            self._roll_out(function, after)

    def _change_live(self, function: str, before: d.Live, after: d.Live) -> None:
        """Note it at the Deployment first, so that replicas that come meanwhile are brought in line too."""
        self._patch(function, d.live_patch(after), MERGE)
        try:
            self._bring_in_line(function, after)
        except RefusedError as error:
            if error.beyond_node or error.not_on_a_live_pod:
                log.info("function %s is rolled out instead: %s", function, error.said)
                self._roll_out(function, after)
                return
            self._patch(function, d.live_patch(before), MERGE)
            raise

    def _roll_out(self, function: str, live: d.Live, *, move: bool = False) -> None:
        patch = d.template_patch(self._deployment(function), live, self._gpu, move=move)
        self._patch(function, patch)

    def _scale_where_allowed(self, function: str, replicas: int, refused: RefusedError | None) -> None:
        """Another number of replicas; where another part of the order was ``refused``, more of them only."""
        now = int(self._deployment(function)["spec"].get("replicas", 1))
        if replicas > now or (replicas < now and refused is None):
            self._scale(function, replicas)

    def _scale(self, function: str, replicas: int) -> None:
        version = self._client.scale(function, replicas)
        known = self._deployment(function)
        meta = known["metadata"] if version is None else {**known["metadata"], "resourceVersion": version}
        self._took_over({**known, "metadata": meta, "spec": {**known["spec"], "replicas": replicas}})

    def _patch(self, function: str, patch: Object, content_type: str | None = None) -> None:
        """Patch the Deployment and take over what came of it."""
        more = () if content_type is None else (content_type,)
        self._took_over(self._client.patch_deployment(function, patch, *more))

    def _took_over(self, document: Object) -> None:
        kept = Kept.of(trimmed_deployment(document))
        self._known.put(kept)
        if self._caches is not None:
            self._caches[0].put(kept)

    def _pod_took_over(self, document: Object) -> None:
        kept = Kept.of(trimmed_pod(document))
        self._known.put_pod(kept)
        if self._caches is not None:
            self._caches[1].put(kept)

    def _keep(self, function: str) -> None:
        seen = self._known.versions(function)
        deployment = self._deployment(function)
        aside = d.set_aside_patch(deployment)
        if aside is not None:
            log.info("function %s: OpenFaaS's own autoscaler is set aside (label %s)", function, d.SCALE_TYPE)
            self._patch(function, aside)
        live = d.live_of(deployment)
        if live is None:
            return
        wish = self._wished.get(function)
        if wish is not None and wish != live and not _noted(deployment):
            log.info("function %s was deployed anew without what was set here; it is set again", function)
            self._change(function, live, wish)
            return
        obstacles = list(self._obstacles(function))
        moving = next((one for one in obstacles if self._moves(one)), None)
        if moving is not None:
            log.warning("function %s: its replicas are placed anew: %s", function, moving)
            self._roll_out(function, live, move=True)
            return
        if any(one.kind == "quota" for one in obstacles):
            self._shrink_to_quota(function, deployment)
        if self._resizes:
            self._bring_in_line(function, live)
        else:
            self._settings_in_line(function, live)
        if not obstacles and self._known.versions(function) == seen:
            self._known.settle(function, seen)

    def _moves(self, condition: Condition) -> bool:
        """Whether only other nodes can help: never on this one, or not for a long while."""
        waited_s = 0.0 if condition.since_s is None else self._clock() - condition.since_s
        return condition.kind == "infeasible" or (condition.kind == "deferred" and waited_s > DEFERRED_LIMIT_S)

    def _shrink_to_quota(self, function: str, deployment: Object) -> None:
        """Ask for no more replicas than there are, so that the quota's room is not fought over in every tick."""
        status, wanted = deployment.get("status", {}), int(deployment["spec"].get("replicas", 1))
        there = int(status.get("replicas", 0))
        rolling = status.get("updatedReplicas", 0) < there
        if rolling or not 0 < there < wanted:
            return
        log.warning("function %s: the quota has room for %d of %d replicas", function, there, wanted)
        self._held[function] = (there, self._clock() + QUOTA_HOLD_S)
        self._scale(function, there)

    def _bring_in_line(self, function: str, live: d.Live) -> None:
        self._settings_in_line(function, live)
        for pod in self._known.pods(function):
            patch = None if leaving(pod) else d.resize_patch(pod, function, live)
            if patch is not None:
                try:
                    self._pod_took_over(self._client.resize(pod["metadata"]["name"], patch))
                except FunctionGoneError:
                    continue  # the pod went meanwhile; the next one is brought in line when it is seen

    def _settings_in_line(self, function: str, live: d.Live) -> None:
        for pod in self._known.pods(function):
            patch = None if leaving(pod) else d.settings_patch(pod, live)
            if patch is not None:
                try:
                    self._pod_took_over(self._client.patch_pod(pod["metadata"]["name"], patch))
                except FunctionGoneError:
                    continue

    def _refuse(self, function: str, error: RefusedError) -> None:
        kind: ConditionKind = (
            "quota"
            if error.over_quota
            else "infeasible"
            if error.beyond_node
            else "forbidden"
            if error.code == 403
            else "refused"
        )
        now_s = self._clock()
        known = self._refused.get(function)
        condition = Condition(function, kind, "", error.said, now_s)
        if known is not None and known[0].message == condition.message and now_s - known[1] < REFUSED_S:
            condition = known[0]
        else:
            log.warning("%s", condition)
        self._refused[function] = condition, now_s


class _Kind:
    """One kind of objects of the client, as a cache reads it."""

    def __init__(self, client: KubernetesClient, resource: str, selector: str) -> None:
        self._client = client
        self._resource = resource
        self._selector = selector

    def list(self) -> tuple[Iterator[Object], Callable[[], str]]:
        told: list[str] = []
        return self._client.listed(self._resource, self._selector, told.append), lambda: told[-1]

    def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
        return self._client.watch(self._resource, self._selector, version, seconds, opened)


def _noted(deployment: Object) -> bool:
    return d.LIVE in (deployment["metadata"].get("annotations") or {})
