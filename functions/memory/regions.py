"""Regions of one node: files in its memory folder, unfinished ones marked, whole ones read-only for everybody.

What comes from disk is proved by the manifest's sha256. Its digest (XXH3, 128 bits: a twentieth of the time) then
proves what other nodes copy: they trust whoever has the feed's token, not the line.

The folder outlives the manager: a manager that starts again finds whole regions as they are and goes on with an
unfinished one where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import xxhash

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)+")
UNFINISHED = ".part"
_BLOCK = 1 << 20


class MemoryRoomError(Exception):
    """Base of this room's errors.

    MemoryRoomError
    ├── RegionError     a region cannot be had: its name, its size, its content
    ├── SourceError     a source stopped; what has come stays and is gone on with
    └── LendError       a region cannot be lent on a GPU (``device_regions``)
    """


class RegionError(MemoryRoomError):
    """A region's name is not allowed, the node's memory is full, or the bytes that came are not the right ones."""


class SourceError(MemoryRoomError):
    """A peer or a disk did not deliver."""


@dataclass(frozen=True)
class Region:
    """What a region is to be: ``PIPELINE/FILE``, its bytes, and their sha256 as the manifest has it."""

    name: str
    nbytes: int
    sha256: str


def check_name(name: str) -> str:
    """The name, if it stays inside the folder. Raises RegionError."""
    if _NAME.fullmatch(name) is None or ".." in name or name.endswith(UNFINISHED):
        raise RegionError(f"region {name[:80]!r}: names are PIPELINE/FILE in letters, digits, '.', '_' and '-'")
    return name


class Regions:
    """The folder of one node. ``limit_bytes`` bounds whole and unfinished regions together; 0 is no limit."""

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.limit_bytes = limit_bytes

    def held(self) -> dict[str, int]:
        """Whole regions: name → bytes."""
        return {name: size for name, size in self._files() if not name.endswith(UNFINISHED)}

    def unfinished(self) -> dict[str, int]:
        """Regions that are coming, or whose coming was broken off: name → bytes that are there."""
        return {name.removesuffix(UNFINISHED): size for name, size in self._files() if name.endswith(UNFINISHED)}

    def path(self, name: str) -> Path:
        """Where a whole region is; workers map this file."""
        return self.folder / check_name(name)

    def digest(self, name: str) -> str:
        """Digest of a whole region, as :attr:`Filling.digest`. Raises OSError."""
        digest = xxhash.xxh3_128()
        with self.path(name).open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def fill(self, region: Region, *, from_peer: bool = False) -> Filling:
        """Begin to fill a region, or go on where it was left; ``from_peer``: its digest will prove it, not its sha256.
        Raises RegionError when the node has no room for it."""
        present = sum(size for name, size in self._files() if name.removesuffix(UNFINISHED) != region.name)
        if self.limit_bytes and present + region.nbytes > self.limit_bytes:
            raise RegionError(
                f"{region.name} has {region.nbytes} bytes; this node holds {present} of {self.limit_bytes} allowed"
            )
        return Filling(self.path(region.name), region, from_peer=from_peer)

    def release(self, name: str) -> int:
        """Give a region's memory back, whole or not; returns its bytes. Workers that map it keep their pages."""
        freed = 0
        for path in (self.path(name), self.path(name).with_name(self.path(name).name + UNFINISHED)):
            if path.is_file():
                freed += path.stat().st_size
                path.unlink()
        return freed

    def _files(self) -> list[tuple[str, int]]:
        files = []
        for path in self.folder.rglob("*"):
            try:
                if path.is_file():
                    files.append((path.relative_to(self.folder).as_posix(), path.stat().st_size))
            except FileNotFoundError:
                continue
        return files


class Filling:
    """An unfinished region: bytes are appended, and it becomes whole only when they are the right ones."""

    def __init__(self, path: Path, region: Region, *, from_peer: bool = False) -> None:
        self.region = region
        self._whole = path
        self._part = path.with_name(path.name + UNFINISHED)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._digest = xxhash.xxh3_128()
        self._sha256 = None if from_peer else hashlib.sha256()
        self.offset = self._read_again()
        """Bytes that are there: where to go on."""
        self.resumed_at = self.offset

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """The next bytes. Raises RegionError for more than the region has."""
        if self.offset + len(data) > self.region.nbytes:
            raise self._spoilt(f"more than its {self.region.nbytes} bytes came")
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._note(data)
        self.offset += len(data)

    @property
    def digest(self) -> str:
        """Digest of the bytes that are there: XXH3 of 128 bits, in hexadecimal digits."""
        return self._digest.hexdigest()

    def finish(self, proved: str = "") -> Path:
        """Make it whole, read-only, under its name. ``proved``: the digest as the node has it that it came from.

        Raises RegionError when the content is not what was asked for.
        """
        if self.offset != self.region.nbytes:
            raise RegionError(f"{self.region.name}: {self.offset} of {self.region.nbytes} bytes are there")
        if self._sha256 is None:
            if self.digest != proved:
                raise self._spoilt(f"its digest is not the one of the node it came from ({proved[:40]!r})")
        elif self._sha256.hexdigest() != self.region.sha256:
            raise self._spoilt("its sha256 is not the manifest's")
        os.fchmod(self._descriptor, 0o400)
        self._part.replace(self._whole)
        return self._whole

    def close(self) -> None:
        """Let go of it; what has come stays for the next attempt."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_again(self) -> int:
        """Digest what an earlier attempt left; more than the region has is thrown away."""
        size = os.fstat(self._descriptor).st_size
        if size > self.region.nbytes:
            os.ftruncate(self._descriptor, 0)
            return 0
        offset = 0
        while offset < size:
            block = os.pread(self._descriptor, _BLOCK, offset)
            self._note(block)
            offset += len(block)
        return offset

    def _note(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)
        if self._sha256 is not None:
            self._sha256.update(data)

    def _spoilt(self, why: str) -> RegionError:
        self._part.unlink(missing_ok=True)
        return RegionError(f"{self.region.name}: {why}; what had come was thrown away")
