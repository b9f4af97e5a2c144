"""Secrets as files: ``STATE/secrets/functions/NAMESPACE/NAME``, mode 0600, linked into a folder per function."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from gateway.contract import ConflictError, FunctionSpec, InvalidSpecError, NotFoundError

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,252})", re.ASCII)


class SecretFiles:
    """All secrets of this gateway's functions. Values are never logged and never held in memory."""

    def __init__(self, state: Path) -> None:
        self._values = state / "secrets" / "functions"
        self._mounts = state / "secrets" / "mounts"
        for folder in (self._values, self._mounts):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self, namespace: str) -> list[str]:
        folder = self._values / namespace
        return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []

    def put(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        """Write atomically. Raises ConflictError, NotFoundError, InvalidSpecError."""
        path = self._path(name, namespace)
        if create and path.exists():
            raise ConflictError(f"secret {name} exists already in {namespace}")
        if not create and not path.exists():
            raise NotFoundError(f"there is no secret {name} in {namespace}")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(value)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def delete(self, name: str, namespace: str) -> None:
        try:
            self._path(name, namespace).unlink()
        except FileNotFoundError:
            raise NotFoundError(f"there is no secret {name} in {namespace}") from None

    def check(self, spec: FunctionSpec) -> None:
        """Raises InvalidSpecError for a secret that does not exist."""
        for name in spec.secrets:
            if not self._path(name, spec.namespace).is_file():
                raise InvalidSpecError(f"{spec.name} needs secret {name}, which does not exist in {spec.namespace}")

    def mount(self, spec: FunctionSpec) -> Path:
        """The function's folder with one link per secret; links follow a secret when its value is replaced."""
        folder = self.folder(spec)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = set(spec.secrets)
        for entry in folder.iterdir():
            if entry.name not in wanted:
                entry.unlink()
        for name in wanted:
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(self._path(name, spec.namespace).resolve())
        return folder

    def folder(self, spec: FunctionSpec) -> Path:
        """Where :meth:`mount` puts a function's secrets."""
        return (self._mounts / spec.key).resolve()

    def unmount(self, spec: FunctionSpec) -> None:
        shutil.rmtree(self._mounts / spec.key, ignore_errors=True)

    def _path(self, name: str, namespace: str) -> Path:
        if not _NAME.fullmatch(name) or not _NAME.fullmatch(namespace):
            raise InvalidSpecError(f"{name[:60]!r} cannot be a secret's name: letters, digits, '-', '_' and '.' only")
        return self._values / namespace / name
