"""A cache of objects that follows the API server: list, then watch, and again from the start where that breaks off."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from gateway.backends.kubernetes.api import METADATA, Api, ApiError, Object, UnreachableError
from gateway.backends.kubernetes.settings import KubernetesSettings
from platform_words.labels import FUNCTION_LABEL

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 10.0
LIVED_S = 1.0
"""A watch that the API server ends sooner was none: the next one comes after a pause, as after an error."""


class ExpiredError(Exception):
    """The API server has forgotten the version that a watch was to start from."""


class Informer:
    """Objects under ``path`` that ``selector`` chooses, by name, and by function. ``changed`` is called after every
    change with the function it is about, None for all.

    While the API server cannot be reached the objects stay as they were last seen: nothing vanishes because nobody
    answers. ``metadata_only`` never asks for more than metadata.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        selector: str,
        settings: KubernetesSettings,
        changed: Callable[[str | None], None],
        *,
        metadata_only: bool = False,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.by_function: dict[str, dict[str, Object]] = {}
        self._api = api
        self._path = path
        self._selector = selector
        self._settings = settings
        self._changed = changed
        self._accept = METADATA if metadata_only else "application/json"
        self._deleted: set[str] = set()
        """Uids deleted by this gateway whose DELETED event is still to come."""
        self._version = ""

    async def load(self) -> None:
        """List everything again. Raises ApiError and UnreachableError."""
        items: dict[str, Object] = {}
        params = {"limit": str(self._settings.page_objects), "labelSelector": self._selector}
        while True:
            page = await self._api.get(self._path, params, accept=self._accept.format("List"))
            for item in page.get("items") or ():
                items[item["metadata"]["name"]] = item
            next_page = page["metadata"].get("continue")
            if not next_page:
                break
            params["continue"] = next_page
        self._version = page["metadata"]["resourceVersion"]  # of no list that broke off: its objects are not taken
        self.objects, self.by_function = {}, {}
        for item in items.values():
            self._set(item)
        self._deleted.clear()
        self._changed(None)

    async def follow(self) -> None:
        """Never returns; the first list was loaded."""
        wait_s = 0.0
        last = ""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            try:
                await self._watch()
                if loop.time() - begun_s >= LIVED_S:
                    wait_s = 0.0
                    continue
            except ExpiredError:
                await asyncio.sleep(wait_s)
                last = await self._reload(last)
            except (ApiError, UnreachableError) as error:
                if str(error) != last:
                    log.warning("%s; the last known state stays in use", error)
                last = str(error)
                if isinstance(error, ApiError) and error.code == 410:
                    last = await self._reload(last)
            except Exception:  # else the task would end, and what it shows would stay as it is for ever
                log.exception("following %s failed; it is tried again", self._path)
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, max(self._settings.first_wait_s, 2 * wait_s))

    def put(self, document: Object) -> None:
        """Take over what a write was answered, ahead of the watch."""
        name, meta = document["metadata"]["name"], document["metadata"]
        present = self.objects.get(name)
        if present is None or _newer(meta, present["metadata"]):
            self._set(document)
            self._changed(_function(document))

    def drop(self, name: str) -> None:
        """Forget what was deleted, ahead of the watch."""
        present = self._remove(name)
        if present is not None:
            self._deleted.add(present["metadata"].get("uid", ""))
            self._changed(_function(present))

    async def _reload(self, last: str) -> str:
        try:
            await self.load()
        except (ApiError, UnreachableError) as error:
            if str(error) != last:
                log.warning("%s; the last known state stays in use", error)
            return str(error)
        return ""

    async def _watch(self) -> None:
        """One watch until the API server ends it. Raises ExpiredError where only a new list helps."""
        params = {
            "watch": "true",
            "labelSelector": self._selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(self._settings.watch_s)),
        }
        silence_s = self._settings.watch_s + self._settings.request_timeout_s
        async for line in self._api.lines(self._path, params, self._accept.format(""), silence_s):
            event = json.loads(line)
            if event["type"] == "ERROR":
                if event["object"].get("code") == 410:
                    raise ExpiredError
                raise ApiError(f"watch {self._path}", event["object"].get("code", 500), str(event["object"]))
            self.take(event["type"], event["object"])

    def take(self, kind: str, document: Object) -> None:
        """Take over one event of the watch."""
        meta = document["metadata"]
        self._version = meta["resourceVersion"]
        if kind == "BOOKMARK":
            return
        name, uid = meta["name"], meta.get("uid", "")
        present = self.objects.get(name)
        if kind == "DELETED":
            self._deleted.discard(uid)
            if present is None or present["metadata"].get("uid") != uid:
                return
            self._remove(name)
        elif uid in self._deleted or (present is not None and not _newer(meta, present["metadata"])):
            return
        else:
            self._set(document)
        self._changed(_function(document))

    def _set(self, document: Object) -> None:
        name = document["metadata"]["name"]
        self.objects[name] = document
        self.by_function.setdefault(_function(document), {})[name] = document

    def _remove(self, name: str) -> Object | None:
        present = self.objects.pop(name, None)
        if present is not None:
            self.by_function.get(_function(present), {}).pop(name, None)
        return present


def _function(document: Object) -> str:
    """The function that an object belongs to, empty for those of none (secrets)."""
    return str((document["metadata"].get("labels") or {}).get(FUNCTION_LABEL, ""))


def _newer(meta: Object, present: Object) -> bool:
    """Whether ``meta`` is of a later form; versions of one resource are numbers that grow."""
    new, old = meta["resourceVersion"], present["resourceVersion"]
    return not (new.isdigit() and old.isdigit()) or int(new) > int(old)
