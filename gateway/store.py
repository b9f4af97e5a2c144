"""Deployed functions on disk, so that a gateway that starts again brings them back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from gateway.contract import FunctionSpec, InvalidSpecError
from gateway.specs import deployment_of, parse_deployment

log = logging.getLogger(__name__)


class FunctionStore:
    """One JSON file a function: its deployment and its number of replicas. Writes are atomic.

    Without a folder nothing is kept: the backend's functions outlive the gateway.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, spec: FunctionSpec, replicas: int) -> None:
        if self._folder is None:
            return
        path = self._folder / _file(spec.name, spec.namespace)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"deployment": deployment_of(spec), "replicas": replicas}))
        part.chmod(0o600)
        part.replace(path)

    def remove(self, name: str, namespace: str) -> None:
        if self._folder is not None:
            (self._folder / _file(name, namespace)).unlink(missing_ok=True)

    def load(self) -> Iterator[tuple[FunctionSpec, int]]:
        """Every stored function; a broken file is set aside with a line in the log."""
        for path in sorted(self._folder.glob("*.json")) if self._folder is not None else ():
            try:
                document = json.loads(path.read_text())
                yield parse_deployment(document["deployment"]), int(document["replicas"])
            except (OSError, ValueError, KeyError, TypeError, InvalidSpecError) as error:
                log.warning("%s is left out: %s", path, error)


def _file(name: str, namespace: str) -> str:
    return f"{name}.{namespace}.json"
