"""Writing a function: its Deployment and Service, by server-side apply, patches and the scale subresource.

Several gateways may give orders about one function in the same moment. Each write here is whole (a create is one call,
a roll-out one apply), or is for the version that it was decided on and refused for any other; so what stays is what one
of them ordered, never half of each.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.api import STRATEGIC, Api, ApiError, Object, UnreachableError
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.ownership import adoption
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.kubernetes.standbys import ordered_of, pods_for, standbys_of
from gateway.contract import ConflictError, FunctionSpec, GatewayError, InvalidSpecError, NotFoundError
from platform_words.labels import BURST

log = logging.getLogger(__name__)


class Functions:
    """Orders about functions of ``settings.namespace``, which clients know as ``namespace``; each is repeated safely,
    and what comes back is known to the cache at once."""

    def __init__(self, api: Api, cache: Informer, settings: KubernetesSettings, namespace: str) -> None:
        self._namespace = namespace
        self._api = api
        self._cache = cache
        self._settings = settings
        self._deployments = f"/apis/apps/v1/namespaces/{settings.namespace}/deployments"
        self._services = f"/api/v1/namespaces/{settings.namespace}/services"

    async def read(self, name: str) -> Object | None:
        """The Deployment as the API server has it now."""
        return await self._api.find(f"{self._deployments}/{name}")

    async def create(self, spec: FunctionSpec, replicas: int, pull_secrets: frozenset[str]) -> None:
        """Raises ConflictError where it exists and InvalidSpecError for what the API server refuses."""
        document = objects.deployment(spec, self._settings, pull_secrets)
        document["spec"]["replicas"] = pods_for(replicas, spec)
        try:
            made = await self._api.create(self._deployments, document)
        except ApiError as error:
            raise (already_there(spec) if error.exists else _named(error)) from error
        await self.serve(spec, made)
        self._cache.put(made)

    async def roll_out(self, spec: FunctionSpec, pull_secrets: frozenset[str]) -> None:
        """A new template: new pods come up before old ones go. Raises NotFoundError and InvalidSpecError."""
        for _ in range(self._settings.tries):
            made = await self._rolled_out(spec, pull_secrets, await self._adopted(spec))
            self._cache.put(made)
            if adoption(made) is None:
                return  # else labels came in between that this apply could not take away

    async def _rolled_out(self, spec: FunctionSpec, pull_secrets: frozenset[str], present: Object) -> Object:
        path, uid = f"{self._deployments}/{spec.name}", present["metadata"]["uid"]
        document = objects.deployment(spec, self._settings, pull_secrets)
        gone = objects.leftovers(present, document)
        if gone is not None:
            await self._api.merge(path, gone, STRATEGIC)
        document["metadata"]["uid"] = uid  # an apply would make again what was deleted meanwhile
        try:
            return await self._api.apply(path, document)
        except ApiError as error:
            now = await self.read(spec.name) if error.code in (409, 422) else present
            if now is None:
                raise NotFoundError(f"there is no function {spec.key}") from error
            if now["metadata"]["uid"] != uid:
                raise ConflictError(f"function {spec.key} was deleted and deployed again meanwhile") from error
            raise _named(error) from error

    async def change_metadata(self, spec: FunctionSpec, expected: FunctionSpec) -> bool:
        """Labels and annotations of the Deployment as ``spec`` has them; its pods do not restart for it.

        False, and nothing is done, where the function is not as ``expected``.
        """
        path = f"{self._deployments}/{spec.name}"
        for left in reversed(range(self._settings.tries)):
            try:
                present = await self._api.get(path)
                if objects.spec_of(present, self._namespace) != expected:
                    return False
                patch = _metadata_patch(present, spec, expected)
                pods = pods_for(ordered_of(present, expected), spec)
                if pods != present["spec"].get("replicas", 1):  # of one form with the rule: standbys come and go
                    patch = {**(patch or {"metadata": {}}), "spec": {"replicas": pods}}
                if patch is not None:
                    patch["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]
                    present = await self._api.merge(path, patch, again=False)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise _named(error) from error
                await asyncio.sleep(self._settings.first_wait_s)
            else:
                self._cache.put(present)
                return True
        raise AssertionError("unreachable")

    async def change_standbys(self, spec: FunctionSpec, before: FunctionSpec) -> FunctionSpec:
        """The function as it is then: as ``before``, with the standbys of ``spec``. Rule and pods are one write, since
        pods without their rule would count as ordered. Raises ConflictError where it is not as ``before``."""
        if standbys_of(spec) == standbys_of(before):
            return before
        notes = {key: value for key, value in before.annotations.items() if key != BURST}
        if BURST in spec.annotations:
            notes[BURST] = spec.annotations[BURST]
        ruled = replace(before, annotations=notes)
        if standbys_of(ruled) != standbys_of(spec):
            return before  # it still has a GPU
        if not await self.change_metadata(ruled, before):
            raise ConflictError(f"function {spec.key} was changed meanwhile")
        return ruled

    async def put_back(self, before: FunctionSpec, ruled: FunctionSpec, replicas: int | None) -> None:
        """After a roll-out that failed: the standbys of ``before``, and as many pods as there were. Where that fails,
        too, the rule of ``ruled`` stays with its pods."""
        try:
            if replicas is not None:
                await self.scale(before.name, replicas)
            await self.change_standbys(before, ruled)
        except (ApiError, UnreachableError, GatewayError) as error:
            log.warning("function %s: what its failed update began could not be taken back: %s", before.key, error)

    async def scale(self, name: str, replicas: int) -> None:
        """Raises NotFoundError."""
        try:
            scaled = await self._api.merge(f"{self._deployments}/{name}/scale", {"spec": {"replicas": replicas}})
        except ApiError as error:
            raise _named(error) from error
        cached = self._cache.objects.get(name)
        if cached is not None:
            version = scaled["metadata"]["resourceVersion"]
            deployment = {**cached, "spec": {**cached["spec"], "replicas": replicas}}
            self._cache.put({**deployment, "metadata": {**cached["metadata"], "resourceVersion": version}})

    async def has_service(self, name: str) -> bool:
        return await self._api.find(f"{self._services}/{name}") is not None

    async def serve(self, spec: FunctionSpec, owner: Object) -> None:
        """The function's Service, which Kubernetes removes with the Deployment ``owner``."""
        await self._api.apply(f"{self._services}/{spec.name}", objects.service(spec, owner, self._settings))

    async def _adopted(self, spec: FunctionSpec) -> Object:
        """The Deployment, all of whose fields that are this gateway's are an apply's."""
        for left in reversed(range(self._settings.tries)):
            present = await self.read(spec.name)
            if present is None:
                raise NotFoundError(f"there is no function {spec.key}")
            patch = adoption(present)
            if patch is None:
                return present
            try:
                return await self._api.merge(f"{self._deployments}/{spec.name}", patch, again=False)
            except ApiError as error:
                if error.code != 409 or not left:
                    raise _named(error) from error
                await asyncio.sleep(self._settings.first_wait_s)
        raise AssertionError("unreachable")


def missing(name: str, namespace: str) -> NotFoundError:
    return NotFoundError(f"there is no function {name} in namespace {namespace}")


def already_there(spec: FunctionSpec) -> ConflictError:
    return ConflictError(f"function {spec.key} exists already")


def _metadata_patch(present: Object, spec: FunctionSpec, before: FunctionSpec) -> Object | None:
    """A merge patch to the labels and annotations of ``spec``. Keys that neither the old nor the new spec names are
    somebody else's and stay."""
    wanted = objects.metadata(spec)
    old = objects.metadata(before)
    patch: dict[str, dict[str, str | None]] = {}
    for kind in ("labels", "annotations"):
        have = present["metadata"].get(kind) or {}
        changes: dict[str, str | None] = {k: v for k, v in wanted[kind].items() if have.get(k) != v}
        changes |= {k: None for k in old[kind] if k in have and k not in wanted[kind]}
        if changes:
            patch[kind] = changes
    return {"metadata": patch} if patch else None


def _named(error: ApiError) -> Exception:
    """The API server's refusal as the error that names the caller's mistake."""
    if error.code == 404:
        return NotFoundError(str(error))
    if error.code in (400, 403, 422):
        return InvalidSpecError(str(error))
    if error.code == 409:
        return ConflictError(str(error))
    return error
