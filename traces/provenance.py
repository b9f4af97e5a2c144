"""Which bytes a number came from: the hash of a file, computed once per file and state of it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from traces.errors import TraceError

CHUNK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """Hex sha256 of the file's bytes as they lie on disk (packed ones are not unpacked). Raises TraceError."""
    try:
        state = path.stat()
        return _hashed(str(path.resolve()), state.st_size, state.st_mtime_ns, state.st_ino)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error


def path_sha256(path: Path) -> str:
    """Hex sha256 of a file (:func:`file_sha256`) or a folder: over the lines ``HASH  NAME`` of all its files, sorted by
    name. Raises TraceError."""
    if not path.is_dir():
        return file_sha256(path)
    names = sorted(child.relative_to(path).as_posix() for child in path.rglob("*") if child.is_file())
    lines = "".join(f"{file_sha256(path / name)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


@lru_cache(maxsize=4096)
def _hashed(path: str, _size: int, _mtime_ns: int, _inode: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
