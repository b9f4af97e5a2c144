"""Writing a function: its Deployment and Service, by server-side apply, patches and the scale subresource."""

from __future__ import annotations

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.api import FIELD_MANAGER, STRATEGIC, Api, ApiError, Object
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import ConflictError, FunctionSpec, InvalidSpecError, NotFoundError

REPLICAS_MANAGER = f"{FIELD_MANAGER}-replicas"
"""Owns ``spec.replicas`` from the start, so that an apply of the rest never resets what someone scaled."""


class Functions:
    """Orders about functions; each is repeated safely, and what comes back is known to the cache at once."""

    def __init__(self, api: Api, cache: Informer, settings: KubernetesSettings) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._deployments = f"/apis/apps/v1/namespaces/{settings.namespace}/deployments"
        self._services = f"/api/v1/namespaces/{settings.namespace}/services"

    async def read(self, name: str) -> Object | None:
        """The Deployment as the API server has it now."""
        try:
            return await self._api.get(f"{self._deployments}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def create(self, spec: FunctionSpec, replicas: int, pull_secrets: frozenset[str]) -> None:
        """Raises InvalidSpecError for what the API server refuses."""
        document = objects.deployment(spec, self._settings, pull_secrets)
        document["spec"]["replicas"] = replicas
        made = await self._apply(document)
        await self._own_replicas(spec.name, replicas)
        await self.serve(spec, made)
        self._cache.put(made)

    async def roll_out(self, spec: FunctionSpec, pull_secrets: frozenset[str]) -> None:
        """A new template: new pods come up before old ones go. Raises NotFoundError and InvalidSpecError."""
        path = f"{self._deployments}/{spec.name}"
        present = await self.read(spec.name)
        if present is None:
            raise NotFoundError(f"there is no function {spec.name}")
        if _owns_replicas(present):  # an earlier create was cut off before it handed them over
            await self._own_replicas(spec.name, present["spec"]["replicas"])
        document = objects.deployment(spec, self._settings, pull_secrets)
        gone = objects.leftovers(present, document)
        if gone is not None:
            await self._api.merge(path, gone, STRATEGIC)
        await self._apply(document)
        await self.change_metadata(spec)

    async def change_metadata(self, spec: FunctionSpec) -> None:
        """Labels and annotations of the Deployment as ``spec`` has them; its pods do not restart for it."""
        path = f"{self._deployments}/{spec.name}"
        for left in reversed(range(self._settings.tries)):
            present = await self._api.get(path)
            patch = _metadata_patch(present, spec)
            if patch is None:
                self._cache.put(present)
                return
            patch["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]
            try:
                self._cache.put(await self._api.merge(path, patch, again=False))
                return
            except ApiError as error:
                if error.code != 409 or not left:
                    raise _named(error) from error

    async def scale(self, name: str, replicas: int) -> None:
        """Raises NotFoundError."""
        try:
            found = await self._api.merge(f"{self._deployments}/{name}/scale", {"spec": {"replicas": replicas}})
        except ApiError as error:
            raise _named(error) from error
        known = self._cache.objects.get(name)
        if known is not None:
            version = found["metadata"]["resourceVersion"]
            scaled = {**known, "spec": {**known["spec"], "replicas": replicas}}
            self._cache.put({**scaled, "metadata": {**known["metadata"], "resourceVersion": version}})

    async def has_service(self, name: str) -> bool:
        try:
            await self._api.get(f"{self._services}/{name}")
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    async def serve(self, spec: FunctionSpec, owner: Object) -> None:
        """The function's Service, which Kubernetes removes with the Deployment ``owner``."""
        await self._api.apply(f"{self._services}/{spec.name}", objects.service(spec, owner, self._settings))

    async def _apply(self, document: Object) -> Object:
        try:
            return await self._api.apply(f"{self._deployments}/{document['metadata']['name']}", document)
        except ApiError as error:
            raise _named(error) from error

    async def _own_replicas(self, name: str, replicas: int) -> None:
        document = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": self._settings.namespace},
            "spec": {"replicas": replicas},
        }
        await self._api.apply(f"{self._deployments}/{name}", document, REPLICAS_MANAGER)


def _owns_replicas(document: Object) -> bool:
    """Whether the manager of everything else still owns the number of replicas too."""
    return any(
        entry["manager"] == FIELD_MANAGER
        and entry["operation"] == "Apply"
        and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in document["metadata"].get("managedFields") or ()
    )


def _metadata_patch(present: Object, spec: FunctionSpec) -> Object | None:
    """A merge patch to the labels and annotations of ``spec``. Keys that neither the old nor the new spec names are
    somebody else's and stay."""
    wanted = objects.metadata(spec)
    before = objects.spec_of(present)
    old = {"labels": {}, "annotations": {}} if before is None else objects.metadata(before)
    patch: dict[str, dict[str, str | None]] = {}
    for kind in ("labels", "annotations"):
        have = present["metadata"].get(kind) or {}
        changes: dict[str, str | None] = {k: v for k, v in wanted[kind].items() if have.get(k) != v}
        changes |= {k: None for k in old[kind] if k in have and k not in wanted[kind]}
        if changes:
            patch[kind] = changes
    return {"metadata": patch} if patch else None


def _named(error: ApiError) -> Exception:
    """What the caller asked for wrongly, told as such."""
    if error.code == 404:
        return NotFoundError(str(error))
    if error.code in (400, 403, 422):
        return InvalidSpecError(str(error))
    if error.code == 409:
        return ConflictError(str(error))
    return error
