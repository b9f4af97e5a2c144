"""The platform itself: reads all functions of a pipeline, applies configurations, keeps replicas in line with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from autoscaler.contract import Bound, Configuration
from autoscaler.errors import FunctionGoneError
from autoscaler.platforms.kubernetes import deployments as d
from autoscaler.platforms.kubernetes.client import MERGE, KubernetesClient, Object, RefusedError
from autoscaler.platforms.kubernetes.conditions import Condition, kind_of, leaving
from autoscaler.platforms.kubernetes.holds import Holds, Refusals
from autoscaler.platforms.kubernetes.present import Cluster
from autoscaler.platforms.kubernetes.room import (
    Order,
    Patience,
    complete,
    failed_resize,
    gives_back,
    in_the_way,
    refused_limits,
    refused_resize,
    short_of,
    stuck,
    wants_new_placement,
)
from autoscaler.platforms.kubernetes.store import of_this_gateway
from autoscaler.platforms.no_standbys import refuse_standbys
from platform_words.labels import LIVE, SCALE_TYPE
from platform_words.live import Live

log = logging.getLogger("smoe.autoscaler.kubernetes")

UNSCHEDULABLE_S = 60.0
"""A new replica that no node has room for is waited for this long; then the plan goes without it."""
COMMUNITY = (
    "OpenFaaS Community Edition: its own controller holds replicas between 1 and 5 and allows 15 functions; GPU shares "
    "and limits set here last until the next deployment of the function, and are set again then"
)


class KubernetesPlatform:
    """:class:`autoscaler.contract.Platform` for the functions of ``pipeline`` (label ``smoe.pipeline``).

    ``configurations`` only reads what the ``cluster`` has. ``keep``,
    once a tick, is the level-triggered part: it brings every replica in line with its function, also new ones, and
    answers what it finds in the way. ``bounds`` is what the cluster has no room or quota for. A new replica waits
    ``unschedulable_s`` for a node before the plan goes without it. ``clock`` gives Unix time.
    """

    def __init__(
        self,
        client: KubernetesClient,
        pipeline: str,
        *,
        gpu: d.GpuSettings | None = None,
        unschedulable_s: float = UNSCHEDULABLE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._gpu = gpu or d.GpuSettings()
        self._clock = clock
        self.cluster = Cluster(client, pipeline)
        self._known = self.cluster.known
        self._desired: dict[str, Live] = {}
        """What this controller asked for on Deployments whose owner may forget it."""
        self._patience = Patience(unschedulable_s, clock)
        self._not_live: dict[str, tuple[str, ...]] = {}
        """Function → versions of its Deployment and pods, of which live pods cannot have its limits: new ones will."""
        self._ordered: dict[str, Order] = {}
        """This controller's last order of limits that has not come about yet, by function."""
        self.holds = Holds(clock)
        """What was refused, and is not asked for again yet."""
        self._refusals = Refusals(clock)

    def close(self) -> None:
        """End the watches."""
        self.cluster.close()

    def configurations(self) -> Mapping[str, Configuration]:
        """Functions without a memory limit, or without a CPU or GPU limit, have no configuration and are left out."""
        self.cluster.look()
        return self._known.configurations()

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        """Raises FunctionGoneError, UnreachableError, and PlatformError for what the API server refuses."""
        if not self.cluster.was_looked_at:
            self.cluster.look()
        deployment = self._known.deployment(function)
        if deployment is not None and not of_this_gateway(deployment):
            refuse_standbys(function, target, "this project's gateway manages them, and OpenFaaS deployed the function")
        if target.gpu_share:
            refuse_standbys(function, target, "a process keeps the GPU share that it was started with")
        before = None if deployment is None else d.live_of(deployment)
        if deployment is None or before is None:
            raise FunctionGoneError(f"there is no function {function} of pipeline {self._pipeline} in this namespace")
        configured = d.configuration_of(deployment)
        runs = self.holds.check(function, configured, target)
        refused: RefusedError | None = None
        try:
            if configured != replace(target, replicas=d.ordered(deployment), burst=d.standbys_of(deployment)):
                after = d.wanted(before, target)
                self._change(function, before, after)
                self._ordered[function] = Order(before, after, configured, target)
        except RefusedError as error:
            refused = error
            if error.over_quota or error.no_right:
                self._hold_limits(function, error, configured, target)
        try:
            self._scale_where_allowed(function, target, refused)
        except RefusedError as error:
            refused = refused or error
            now = d.ordered(deployment)
            if error.no_right and target.replicas > now:
                self.holds.replicas(function, "forbidden", now, error.answer)
        if refused is not None:
            self._refuse(function, refused)
            raise refused
        self._refusals.over(function)
        if runs is not None and gives_back(runs, target):
            self.holds.given_back()

    def bounds(self) -> Mapping[str, Bound]:
        """What the cluster cannot give functions now: more of what they wait for, and what was refused and is not asked
        for again yet. Found out from what was read last."""
        ripe_s = self._ripe_s
        self.holds.forget({name for name in self.holds.bounded() if self._known.deployment(name) is None})
        bounds: dict[str, Bound] = {}
        for function in self._known.unsettled():
            obstacles = self._known.obstacles(function)
            if not obstacles:
                continue
            deployment = self._deployment(function)
            short = short_of(deployment, self._known.pods(function), obstacles, ripe_s)
            if short is not None:
                self.holds.replicas(function, short.kind, short.most, short.message)
            bound = in_the_way(deployment, obstacles)
            if bound is not None:
                bounds[function] = bound
        for function in self.holds.bounded():
            held = self.holds.bound(function)
            if held is not None:
                bounds[function] = held.and_also(bounds[function]) if function in bounds else held
        return bounds

    def floors(self) -> Mapping[str, int]:
        """Fewest replicas of functions with a placement on several nodes, as read last: one for each node."""
        return self._known.floors()

    def taken_back(self) -> Mapping[str, int]:
        """Replicas of functions before some were taken back for want of room, as read last; noted at Deployments."""
        return self._known.taken_back()

    def in_force(self) -> Mapping[str, Configuration]:
        """What runs of functions whose replicas have not all been brought to their limits, as read last; of replicas
        that differ the most of each limit."""
        running = {name: self._known.in_force(name) for name in self._known.unsettled()}
        return {name: configuration for name, configuration in running.items() if configuration is not None}

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
        obstacles = [condition for function in self._known.unsettled() for condition in self._known.obstacles(function)]
        reported = {(one.function, one.kind) for one in obstacles}
        held = (one for one in self.holds.conditions() if (one.function, one.kind) not in reported)
        return (*obstacles, *held, *self._refusals.conditions())

    def notes(self) -> tuple[str, ...]:
        """What this platform cannot do here, in sentences."""
        notes = []
        if not self.cluster.resizes_pods:
            notes.append("this Kubernetes cannot resize pods (1.33 can): changed limits are rolled out")
        if self._known.any_of_the_community_edition():
            notes.append(COMMUNITY)
        return tuple(notes)

    def _deployment(self, function: str) -> Object:
        deployment = self._known.deployment(function)
        if deployment is None:
            raise FunctionGoneError(f"function {function} was deleted meanwhile")
        return deployment

    @property
    def _ripe_s(self) -> float:
        return self._patience.ripe_s(self._known.pods_end())

    @property
    def _resizes(self) -> bool:
        return self.cluster.resizes_pods and not self.holds.lacks_right(self._pipeline)

    def _change(self, function: str, before: Live, after: Live) -> None:
        deployment = self._deployment(function)
        owned = of_this_gateway(deployment)
        if not owned:
            self._desired[function] = after
        resized = (before.limits, before.requests) != (after.limits, after.requests)
        settled = before.max_inflight == after.max_inflight or d.takes_live_settings(deployment)
        # The gateway brings its own templates in line without a roll-out; others' later pods would start too small.
        lives_on = owned or not d.above_template(deployment, after)
        if settled and lives_on and (not resized or (self._resizes and d.only_resizes(before, after))):
            self._change_live(function, before, after)
        else:
            self._roll_out(function, after)

    def _change_live(self, function: str, before: Live, after: Live) -> None:
        """Note it at the Deployment first, so that replicas that come meanwhile are brought in line too."""
        self._patch(function, d.live_patch(after), MERGE)
        try:
            self._bring_in_line(function, after)
        except RefusedError as error:
            if not self._answered_by_a_roll_out(function, error):
                self._patch(function, d.live_patch(before), MERGE)
                raise
            self._roll_out(function, after)

    def _answered_by_a_roll_out(self, function: str, error: RefusedError) -> bool:
        """Whether new replicas can have what this live one was refused."""
        if error.no_right_to_resize:
            self.holds.right(self._pipeline, f"{error.answer}; changed limits are rolled out")
        elif error.beyond_node or error.not_on_a_live_pod:
            log.info("function %s is rolled out instead: %s", function, error.answer)
        else:
            return False
        return True

    def _roll_out(self, function: str, live: Live, *, move: bool = False) -> None:
        patch = d.template_patch(self._deployment(function), live, self._gpu, move=move)
        self._patch(function, patch)

    def _scale_where_allowed(self, function: str, target: Configuration, refused: RefusedError | None) -> None:
        """Another number of replicas and standbys; where another part of the order was ``refused``, more of them
        only."""
        deployment = self._deployment(function)
        patch = d.standbys_patch(target)
        now, pods = d.pods_of(deployment), int(patch["spec"]["replicas"])
        if refused is not None and pods <= now:
            return
        bound, there = self.holds.bound(function), d.ordered(deployment)
        if bound is not None and max(target.replicas, bound.replicas) < there:
            self._patch(function, d.taken_back_patch(deployment, target.replicas), MERGE)
        if target.burst != d.standbys_of(deployment):
            self._patch(function, patch, MERGE)
        elif pods != now:
            self._scale(function, pods)

    def _scale(self, function: str, replicas: int) -> None:
        version = self._client.scale(function, replicas)
        deployment = self._deployment(function)
        meta = deployment["metadata"] if version is None else {**deployment["metadata"], "resourceVersion": version}
        self.cluster.take_over({**deployment, "metadata": meta, "spec": {**deployment["spec"], "replicas": replicas}})

    def _patch(self, function: str, patch: Object, content_type: str | None = None) -> None:
        """Patch the Deployment and take over what came of it."""
        more = () if content_type is None else (content_type,)
        self.cluster.take_over(self._client.patch_deployment(function, patch, *more))

    def _keep(self, function: str) -> None:
        versions = self._known.versions(function)
        deployment = self._deployment(function)
        aside = d.set_aside_patch(deployment)
        if aside is not None:
            log.info("function %s: OpenFaaS's own autoscaler is set aside (label %s)", function, SCALE_TYPE)
            self._patch(function, aside)
        over = d.note_over_patch(deployment)
        if over is not None:
            self._patch(function, over, MERGE)
        live = d.live_of(deployment)
        if live is None:
            return
        desired = self._desired.get(function)
        if desired is not None and desired != live and not _noted(deployment):
            log.info("function %s was deployed again without what was set here; it is set again", function)
            self._change(function, live, desired)
            return
        obstacles = self._known.obstacles(function)
        moving = None if d.moved(deployment, live) else self._cause_of_new_placement(function, live, obstacles)
        if moving is not None:
            log.warning("function %s: its replicas are placed again: %s", function, moving)
            self._roll_out(function, live, move=True)
            return
        if self._took_back(function, live, obstacles) or self._took_back_resize(function, live, obstacles):
            return
        if not self._limits_in_line(function, deployment, live):
            return
        self._settings_in_line(function, live)
        if not obstacles and self._known.versions(function) == versions:
            self._known.settle(function, versions)
            configured = d.configuration_of(deployment)
            if configured is not None and complete(deployment, self._known.pods(function), live):
                self._ordered.pop(function, None)
                self.holds.came_about(function, configured)

    def _cause_of_new_placement(self, function: str, live: Live, obstacles: Sequence[Condition]) -> Condition | None:
        """What only other nodes can help with: a resize to these limits, and not to others before them."""
        if not obstacles:
            return None
        differing = {pod["metadata"]["name"] for pod, _ in self._resizes_to(function, live)}
        present = (one for one in obstacles if one.pod not in differing)
        return next((one for one in present if wants_new_placement(one, self._clock())), None)

    def _took_back(self, function: str, live: Live, obstacles: Sequence[Condition]) -> bool:
        """Take limits back that were ordered here and cannot be rolled out; what others ordered is left alone."""
        order, ripe_s = self._ordered.get(function), self._ripe_s
        why = stuck(obstacles, ripe_s)
        if order is None or order.after != live or why is None:
            return False
        if short_of(self._deployment(function), self._known.pods(function), obstacles, ripe_s) is not None:
            return False  # fewer replicas first: the rest may find room then
        bound = refused_limits(why.kind, order.configured, order.target, why.message)
        self.holds.limits(function, why.kind, bound, why.message)
        self._forget(function, order)
        self._patch(function, d.take_back_patch(self._deployment(function), order.before, self._gpu))
        return True

    def _took_back_resize(self, function: str, live: Live, obstacles: Sequence[Condition]) -> bool:
        """Take limits back that were ordered here and that kubelets try in vain to bring about."""
        order, failed = self._ordered.get(function), failed_resize(obstacles, self._clock())
        if order is None or order.after != live or failed is None:
            return False
        self.holds.limits(function, "resize failed", refused_resize(order.configured, order.target), failed.message)
        self._forget(function, order)
        self._patch(function, d.live_patch(order.before), MERGE)
        self._bring_in_line(function, order.before)
        return True

    def _forget(self, function: str, order: Order) -> None:
        del self._ordered[function]
        if function in self._desired:
            self._desired[function] = order.before

    def _limits_in_line(self, function: str, deployment: Object, live: Live) -> bool:
        """Whether all replicas have their limits, or get them by a roll-out that is under way."""
        if not any(self._resizes_to(function, live)):
            return True
        if self._resizes and self._not_live.get(function) != self._known.versions(function):
            configured = d.configuration_of(deployment)
            if configured is not None and self.holds.refuses(function, configured):
                self._settings_in_line(function, live)
                return False  # over quota: another try comes when the hold ends
            try:
                self._bring_in_line(function, live)
                return True
            except RefusedError as error:
                if error.over_quota and configured is not None:
                    bound = refused_limits("quota", None, configured, error.answer)
                    self.holds.limits(function, "quota", bound, error.answer)
                if not self._answered_by_a_roll_out(function, error):
                    raise
                self._not_live[function] = self._known.versions(function)
        if not d.has_limits(deployment, function, live):
            self._roll_out(function, live)
        return True

    def _resizes_to(self, function: str, live: Live) -> Iterator[tuple[Object, Object]]:
        """Pods that stay and differ from ``live``, each with the patch that brings it there."""
        standbys = d.standbys_of(self._deployment(function)) is not None
        for pod in self._known.pods(function):
            patch = None if leaving(pod) else d.resize_patch(pod, function, live, standbys=standbys)
            if patch is not None:
                yield pod, patch

    def _bring_in_line(self, function: str, live: Live) -> None:
        self._settings_in_line(function, live)
        for pod, patch in self._resizes_to(function, live):
            try:
                self.cluster.take_over_pod(self._client.resize(pod["metadata"]["name"], patch))
            except FunctionGoneError:
                continue  # the pod went meanwhile; the next one is brought in line when it is seen

    def _settings_in_line(self, function: str, live: Live) -> None:
        for pod in self._known.pods(function):
            patch = None if leaving(pod) else d.settings_patch(pod, live)
            if patch is not None:
                try:
                    self.cluster.take_over_pod(self._client.patch_pod(pod["metadata"]["name"], patch))
                except FunctionGoneError:
                    continue

    def _hold_limits(
        self, function: str, error: RefusedError, configured: Configuration | None, target: Configuration
    ) -> None:
        """What grew is not asked for again yet; where nothing did, there is nothing to plan without."""
        kind = kind_of(error)
        bound = refused_limits(kind, configured, target, error.answer)
        if bound != Bound(kind) or error.over_quota:
            self.holds.limits(function, kind, bound, error.answer)

    def _refuse(self, function: str, error: RefusedError) -> None:
        if (error.over_quota or error.no_right) and self.holds.bound(function) is not None:
            self._refusals.over(function)  # its hold is the condition
        else:
            self._refusals.met(function, error)


def _noted(deployment: Object) -> bool:
    return LIVE in (deployment["metadata"].get("annotations") or {})
