"""OpenFaaS's secrets as Kubernetes secrets: one key of the secret's own name. Values pass through, none is kept."""

from __future__ import annotations

import base64
from secrets import token_hex

from gateway.backends.kubernetes.api import Api, ApiError, Object
from gateway.contract import BackendError, ConflictError, FunctionSpec, InvalidSpecError, NotFoundError

MANAGED = {"app.kubernetes.io/managed-by": "openfaas"}
SELECTOR = "app.kubernetes.io/managed-by=openfaas"
CALLER_KEY = "caller-key"
"""The key of the secret with what functions take calls with."""
_PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")


class Secrets:
    """The secrets of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/secrets"

    async def put(self, name: str, value: bytes, *, create: bool) -> Object:
        """The secret's metadata. Raises ConflictError, NotFoundError, BackendError."""
        data = {name: base64.b64encode(value).decode()}
        try:
            if create:
                metadata = {"name": name, "labels": MANAGED}
                document = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
                written = await self._api.create(self._path, document)
            else:
                written = await self._api.merge(f"{self._path}/{name}", {"data": data})
        except ApiError as error:
            if error.exists:
                raise ConflictError(f"secret {name} exists already") from None
            if error.code == 404:
                raise NotFoundError(f"there is no secret {name}") from None
            raise
        return {"metadata": written["metadata"]}

    async def delete(self, name: str) -> None:
        """Raises NotFoundError, BackendError."""
        try:
            await self._api.call("DELETE", f"{self._path}/{name}")
        except ApiError as error:
            if error.code == 404:
                raise NotFoundError(f"there is no secret {name}") from None
            raise

    async def caller_key(self, name: str) -> str:
        """What functions take calls with; made where there is no such secret, by one of several gateways. Raises
        BackendError."""
        path = f"{self._path}/{name}"
        document = await self._api.find(path)
        if document is None:
            data = {CALLER_KEY: base64.b64encode(token_hex(32).encode()).decode()}
            made = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": name}, "data": data}
            try:
                document = await self._api.create(self._path, made)
            except ApiError as error:
                if not error.exists:
                    raise
                document = await self._api.get(path)
        value = base64.b64decode((document.get("data") or {}).get(CALLER_KEY, "")).decode().strip()
        if not value:
            raise BackendError(f"secret {name} has no {CALLER_KEY}; delete it, and a gateway that starts makes another")
        return value

    async def pull_secrets(self, spec: FunctionSpec) -> frozenset[str]:
        """The function's secrets that are used to pull its image. Raises InvalidSpecError for a missing one."""
        names = set()
        for name in spec.secrets:
            try:
                document = await self._api.get(f"{self._path}/{name}")
            except ApiError as error:
                if error.code != 404:
                    raise
                raise InvalidSpecError(
                    f"{spec.name} needs secret {name}, which does not exist in {spec.namespace}"
                ) from None
            if document.get("type") in _PULL_TYPES:
                names.add(name)
        return frozenset(names)
