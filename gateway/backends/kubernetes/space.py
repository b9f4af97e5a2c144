"""One namespace of a cluster and the functions in it: followed by watches, changed by orders, kept in line."""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.activations import ActivatedTime
from gateway.backends.attempts import attempt
from gateway.backends.kubernetes import objects, standbys
from gateway.backends.kubernetes.api import Api, ApiError, Object, UnreachableError
from gateway.backends.kubernetes.functions import Functions, already_there, missing
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.keeper import Keeper
from gateway.backends.kubernetes.live import has_raised_request, live_of
from gateway.backends.kubernetes.logs import PodLogs
from gateway.backends.kubernetes.pod_spec import of_this_package
from gateway.backends.kubernetes.pods import Starts, addresses, moment, problems, replicas, restarts
from gateway.backends.kubernetes.secrets import SELECTOR, Secrets
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.kubernetes.template import Templates
from gateway.backends.kubernetes.usage import PodUsage
from gateway.changes import within
from gateway.contract import FunctionSpec, FunctionState, LogLine, Usage
from gateway.placement import parse_placement
from platform_words.labels import FUNCTION_LABEL
from platform_words.live import Live

log = logging.getLogger(__name__)

RESIZED_AT_ONCE = 8
"""Functions whose pods are brought in line at the same time."""
_DELETE_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions"}


class Space:
    """The functions of ``settings.namespace``, which clients know as namespace ``name``. ``changed`` is called after
    every change; ``resizes``: whether the cluster can resize pods.
    """

    def __init__(
        self, api: Api, settings: KubernetesSettings, name: str, *, resizes: bool, changed: Callable[[], None]
    ) -> None:
        self.name = name
        self._api = api
        self._settings = settings
        self._resizes = resizes
        self._notify = changed
        self._change = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._starts = Starts()
        self._states: dict[str, FunctionState | None] = {}
        """States of functions, rebuilt after each change of one; None: a Deployment that is not ours."""
        self._making: set[str] = set()
        """Functions whose create is under way here."""
        self._touched: set[str] = set()
        """Functions that changed since their pods were last looked at."""
        self._levels: Mapping[str, int] = {}
        """Function → standbys that are to be activated."""
        self._activated: dict[str, ActivatedTime] = {}
        # Of this process and no other: by it, notes on pods are known for this gateway's own orders.
        self._gateway = uuid.uuid4().hex
        self._lowered = standbys.Lowered(self._gateway, settings.standby_held_s, settings.standby_others_s)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Function → when its standbys are looked at again."""
        core, space = "/api/v1/namespaces", settings.namespace
        self._pods_path = f"{core}/{space}/pods"
        self._deployments_path = f"/apis/apps/v1/namespaces/{space}/deployments"
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
        selector, changed_function = FUNCTION_LABEL, self._changed
        self.deployments = Informer(api, self._deployments_path, selector, settings, changed_function)
        self._pods = Informer(api, self._pods_path, selector, settings, self._pods_changed)
        self._slices = Informer(api, slices, selector, settings, changed_function)
        self._secret_names = Informer(  # names are all it needs: no value of a secret is held in memory
            api, f"{core}/{space}/secrets", SELECTOR, settings, changed_function, metadata_only=True
        )
        self._secrets = Secrets(api, space)
        self._caller_key = ""
        self._usage = PodUsage(api, space, selector)
        self._keeper = Keeper(api, self._pods_path)
        self._templates = Templates(api, space)
        self._functions = Functions(api, self.deployments, settings, name)

    async def start(self) -> None:
        """Read the namespace once, then follow it. Raises BackendError where it cannot be read."""
        if self._settings.caller_secret:
            self._caller_key = await self._secrets.caller_key(self._settings.caller_secret)
        informers = (self.deployments, self._pods, self._slices, self._secret_names)
        await asyncio.gather(*(informer.load() for informer in informers))
        self._tasks = [asyncio.create_task(informer.follow()) for informer in informers]
        self._tasks.append(asyncio.create_task(self._keep()))
        self._tasks.append(asyncio.create_task(self._forever(self._usage.measure, self._settings.usage_interval_s)))

    async def close(self) -> None:
        """Stop following; the functions run on."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._changed(None)

    @property
    def measured(self) -> bool | None:
        """Whether the cluster measures its pods; None: not asked yet."""
        return self._usage.available

    def notes(self) -> builtins.list[str]:
        return self._keeper.notes()

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        objects.check(spec)
        if await self._functions.read(spec.name) is not None:
            raise already_there(spec)
        pull = await self._secrets.pull_secrets(spec)
        self._making.add(spec.name)
        try:
            await self._functions.create(spec, replicas, pull)
        finally:
            self._making.discard(spec.name)

    async def update(self, spec: FunctionSpec) -> None:
        objects.check(spec)
        pull = await self._secrets.pull_secrets(spec)
        before, same_shape = await self._present(spec)
        for _ in range(self._settings.tries):
            if not same_shape or not self._lives_on(before, spec):
                break
            if await self._functions.change_metadata(spec, before):
                if await self._keeper.keep(spec.name, live_of(spec), self._pods_of(spec.name)):
                    return
                log.info("function %s: its pods cannot be resized where they are, so they are replaced", spec.key)
                before = spec
                break
            before, same_shape = await self._present(spec)
        ruled = await self._functions.change_standbys(spec, before)
        ordered, places = (await self.look(spec.name)).desired_replicas, parse_placement(spec)
        moved = places and places != parse_placement(before)
        present = standbys.pods_for(ordered, ruled)
        pods = standbys.pods_for(sum(places.values()) if moved else ordered, spec)
        try:
            if pods > present:  # never fewer that take calls than were ordered
                await self._functions.scale(spec.name, pods)
            await self._functions.roll_out(spec, pull)
        except Exception:
            await self._functions.put_back(before, ruled, present if pods > present else None)
            raise
        if pods < present:
            await self._functions.scale(spec.name, pods)

    async def delete(self, name: str) -> None:
        await self.look(name)
        try:
            await self._api.call(
                "DELETE", f"{self._deployments_path}/{name}", {**_DELETE_OPTIONS, "propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.code != 404:
                raise
        self.deployments.drop(name)

    async def scale(self, name: str, replicas: int) -> None:
        state = await self.look(name)
        await self._functions.scale(name, standbys.pods_for(replicas, state.spec))

    def activate(self, levels: Mapping[str, int]) -> None:
        """Let so many standbys of each function take calls, at once; their CPU requests follow."""
        differing = {name for name in self._levels.keys() | levels.keys() if self._levels.get(name) != levels.get(name)}
        self._levels = levels
        for name in differing:
            self._states.pop(name, None)
            self._known(name)  # counts from now on
        if differing:
            self._touched |= differing
            self._wake()

    def get(self, name: str) -> FunctionState:
        return self._state(name)

    async def look(self, name: str) -> FunctionState:
        """As :meth:`get`, but the API server is asked for what the watch has not brought yet."""
        if self._known(name) is None:
            document = await self._functions.read(name)
            if document is not None:
                self.deployments.put(document)
        return self._state(name)

    def list(self) -> builtins.list[FunctionState]:
        states = (self._known(name) for name in self.deployments.objects)
        return [state for state in states if state is not None]

    def usage(self, name: str) -> Mapping[str, Usage]:
        return {replica.id: self._usage.of(replica.id) for replica in self._state(name).replicas}

    def start_seconds(self) -> builtins.list[float]:
        return self._starts.take()

    def logs(
        self, name: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        self._state(name)

        def pods() -> builtins.list[str] | None:
            gone = self._closed or self._known(name) is None
            return None if gone else [pod["metadata"]["name"] for pod in self._pods_of(name)]

        async def changed() -> None:
            await within(60.0, self._change)

        return PodLogs(self._api, self._pods_path, name, self.name, pods, changed).read(instance, since_s, tail, follow)

    def secret_names(self) -> builtins.list[str]:
        return sorted(self._secret_names.objects)

    async def put_secret(self, name: str, value: bytes, *, create: bool) -> None:
        self._secret_names.put(await self._secrets.put(name, value, create=create))

    async def delete_secret(self, name: str) -> None:
        await self._secrets.delete(name)
        self._secret_names.drop(name)

    # inside

    def _state(self, name: str) -> FunctionState:
        state = self._known(name)
        if state is None:
            raise missing(name, self.name)
        return state

    async def _present(self, spec: FunctionSpec) -> tuple[FunctionSpec, bool]:
        """The function as the API server has it now, and whether this gateway's settings would shape it so. Raises
        NotFoundError."""
        document = await self._functions.read(spec.name)
        spec_there = None if document is None else objects.spec_of(document, self.name)
        if document is None or spec_there is None:
            raise missing(spec.name, spec.namespace)
        return spec_there, objects.made_by(document, self._settings)

    def _lives_on(self, before: FunctionSpec, after: FunctionSpec) -> bool:
        """Whether pods become those of ``after`` without a restart, on this cluster."""
        return objects.only_live_differs(before, after) and (
            self._resizes or (before.limits, before.requests) == (after.limits, after.requests)
        )

    def _known(self, name: str) -> FunctionState | None:
        document = self.deployments.objects.get(name)
        if document is None:
            return None
        if name not in self._states:
            self._states[name] = self._put_together(name, document)
        state, activated = self._states[name], self._activated.get(name)
        return replace(state, activated_s=activated.seconds()) if state and activated else state

    def _put_together(self, name: str, document: Object) -> FunctionState | None:
        spec = objects.spec_of(document, self.name)
        if spec is None:
            return None
        pods = self._pods_of(name)
        there = replicas(pods, addresses(self._slices.by_function.get(name, {}).values()))
        ordered = standbys.ordered_of(document, spec)
        waiting, sleeps = standbys.waiting(ordered, spec), standbys.standbys_of(spec)[1]
        running = 0 if sleeps else ordered
        if waiting:
            there = tuple(standbys.opened(there, running + min(self._levels.get(name, 0), waiting)))
        state = FunctionState(
            spec=spec,
            desired_replicas=ordered,
            replicas=there,
            max_inflight=live_of(spec).max_inflight,
            created_at_s=moment(document["metadata"].get("creationTimestamp")),
            restarts=restarts(pods),
            problems=problems(pods),
            standbys=waiting,
            caller_key=self._caller_key if of_this_package(spec) else "",
            sleeps=sleeps,
        )
        activated = min(waiting, max(0, len(state.ready) - running))
        self._activated.setdefault(name, ActivatedTime(time.monotonic)).count(activated)
        return replace(state, activated=activated)

    def _pods_of(self, name: str) -> builtins.list[Object]:
        return list(self._pods.by_function.get(name, {}).values())

    def _changed(self, function: str | None) -> None:
        if function is None:
            self._states.clear()
            self._touched.update(self.deployments.objects)
        elif function:
            self._states.pop(function, None)
            self._touched.add(function)
        self._wake()

    def _wake(self) -> None:
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()
        self._notify()

    def _pods_changed(self, function: str | None) -> None:
        if function is None:
            self._starts.see(self._pods.objects.values(), listed=True)
        else:
            self._starts.see(self._pods_of(function))
        self._changed(function)

    async def _keep(self) -> None:
        """Bring pods in line whenever something changes, and all of them every ``resync_s``."""
        next_s = 0.0
        while True:
            change = self._change
            now_s = time.monotonic()
            if now_s >= next_s:
                self._touched.update(self.deployments.objects)
                next_s = now_s + self._settings.resync_s
                self._forget_gone()
            names, self._touched = self._touched, set()
            if not await self._keep_in_line(names):
                await asyncio.sleep(1.0)
            await within(max(0.0, next_s - time.monotonic()), change)

    async def _keep_in_line(self, names: set[str]) -> bool:
        """Whether the API server let all of them be; those that it did not are touched again."""
        turns = asyncio.Semaphore(RESIZED_AT_ONCE)

        async def keep(name: str) -> None:
            try:
                async with turns:
                    await self._keep_function(name)
            except (ApiError, UnreachableError) as error:
                errors.append(error)
                self._touched.add(name)
            except Exception:
                log.exception("pods of function %s could not be brought in line, they are looked at again later", name)

        errors: builtins.list[Exception] = []
        await asyncio.gather(*(keep(name) for name in sorted(names)))
        if errors:
            log.warning("pods could not all be brought in line, it is tried again: %s", errors[0])
        return not errors

    async def _keep_function(self, name: str) -> None:
        state, document = self._known(name), self.deployments.objects.get(name)
        if state is None or document is None:
            return
        unserved = name not in self._slices.by_function and name not in self._making
        if unserved and not await self._functions.has_service(name):
            await self._functions.serve(state.spec, document)  # a create was cut off before it came to this
        if self._resizes:
            live = live_of(state.spec)
            pods = self._pods_of(name)
            renewed = await self._templates.follow(document, live, pods)
            low = live.waiting(self._settings.standby_cpu)
            look = self._look_at_standbys(state, low, pods)
            until = f"{time.time() + standbys.NOTED_S:.0f} {self._gateway}"
            notes = {pod: until if noted else None for pod, noted in look.noted.items()}
            await self._keeper.keep(name, live, pods, renewed=renewed, waiting=(look.lowered, low), notes=notes)

    def _look_at_standbys(self, state: FunctionState, low: Live, pods: builtins.list[Object]) -> standbys.Look:
        """What is to be done about the standbys of the function in ``state`` now; it is looked at again in time."""
        name, now_s = state.spec.name, time.time()
        raised = {pod["metadata"]["name"] for pod in pods if has_raised_request(pod, name, low)}
        notes = {pod["metadata"]["name"]: standbys.Note.of(pod, now_s) for pod in pods}
        look = self._lowered.look(state, raised, notes, time.monotonic())
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if look.again_s is not None:
            self._timers[name] = asyncio.get_running_loop().call_later(look.again_s, self._look_again, name)
        return look

    def _look_again(self, name: str) -> None:
        self._timers.pop(name, None)
        self._touched.add(name)
        self._wake()

    def _forget_gone(self) -> None:
        self._keeper.forget(self._pods.objects)
        self._starts.keep(self._pods.objects)
        self._lowered.keep(self._pods.objects)
        for name in self._activated.keys() - self.deployments.objects.keys():
            del self._activated[name]

    @staticmethod
    async def _forever(work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        while True:
            await attempt(work)
            await asyncio.sleep(interval_s)
