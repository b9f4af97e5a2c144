"""Secrets as files: ``STATE/secrets/functions/NAMESPACE/NAME``, mode 0600, and copies in memory for each function.

The copies are in the function's run folder (:mod:`gateway.backends.process.run_folders`), which only it may enter.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from gateway.backends.process.run_folders import SECRETS, RunFolders
from gateway.contract import ConflictError, FunctionSpec, InvalidSpecError, NotFoundError

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,252})", re.ASCII)


class SecretFiles:
    """All secrets of this gateway's functions. Values are never logged and never held in its memory."""

    def __init__(self, state: Path, run: RunFolders) -> None:
        self._values = state / "secrets" / "functions"
        self._run = run
        self._values.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._values.mkdir(exist_ok=True, mode=0o700)

    def names(self, namespace: str) -> list[str]:
        folder = self._values / namespace
        return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []

    def put(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        """Write atomically; functions that have the secret read the new value from now on. Raises ConflictError,
        NotFoundError, InvalidSpecError."""
        path = self._path(name, namespace)
        if create and path.exists():
            raise ConflictError(f"secret {name} exists already in {namespace}")
        if not create and not path.exists():
            raise NotFoundError(f"there is no secret {name} in {namespace}")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, value, 0o600)
        for copy in self._copies(name, namespace):
            _write(copy, value, 0o444)

    def delete(self, name: str, namespace: str) -> None:
        try:
            self._path(name, namespace).unlink()
        except FileNotFoundError:
            raise NotFoundError(f"there is no secret {name} in {namespace}") from None
        for copy in self._copies(name, namespace):
            copy.unlink()

    def check(self, spec: FunctionSpec) -> None:
        """Raises InvalidSpecError for a secret that does not exist."""
        for name in spec.secrets:
            if not self._path(name, spec.namespace).is_file():
                raise InvalidSpecError(f"{spec.name} needs secret {name}, which does not exist in {spec.namespace}")

    def mount(self, spec: FunctionSpec) -> Path:
        """The function's folder with its secrets and no others."""
        folder = self._run.of(spec.key) / SECRETS
        wanted = set(spec.secrets)
        for entry in folder.iterdir():
            if entry.name not in wanted:
                entry.unlink()
        for name in wanted:
            _write(folder / name, self._path(name, spec.namespace).read_bytes(), 0o444)
        return folder

    def _copies(self, name: str, namespace: str) -> list[Path]:
        return [path for path in self._run.folder.glob(f"*.{namespace}/{SECRETS}/{name}") if path.is_file()]

    def _path(self, name: str, namespace: str) -> Path:
        if not _NAME.fullmatch(name) or not _NAME.fullmatch(namespace):
            raise InvalidSpecError(f"{name[:60]!r} cannot be a secret's name: letters, digits, '-', '_' and '.' only")
        return self._values / namespace / name


def _write(path: Path, value: bytes, mode: int) -> None:
    """Put a whole new file in place of an old one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(value)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
