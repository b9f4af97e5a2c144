"""Opening a file as it was published: plain, gzip, xz, bzip2, zip, tar (packed or not), rar, or a folder of such.

What a file is, its content decides, never its name. Nothing is unpacked to disk: a member of an archive is
read as a stream, in the archive's order, and only while it is the current one. Rar needs an unpacking program
(``bsdtar``, ``unar``, ``unrar`` or ``7z``) on the machine unless its members are stored unpacked; the error names them.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import rarfile

from traces.errors import TraceError, broken

DAMAGE: tuple[type[BaseException], ...] = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    rarfile.Error,
)
"""What reading packed data raises when it is damaged (RuntimeError: a zip with a password)."""
MAX_MEMBERS = 100_000
MAGIC_TAR = (257, b"ustar")
PEEK_BYTES = 512
BUFFER_BYTES = 1 << 20
GZIP, XZ, BZIP2 = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh"
PACKED = (GZIP, XZ, BZIP2)


@dataclass(frozen=True)
class Source:
    """One readable file: the only one of ``path``, or a member of it."""

    path: Path
    member: str | None
    stream: IO[bytes]

    @property
    def label(self) -> Path:
        """For messages: the path, with ``!member`` behind it inside an archive."""
        return self.path if self.member is None else Path(f"{self.path}!{self.member}")

    @property
    def name(self) -> str:
        """File name without folders."""
        return (self.member or self.path.name).rsplit("/", 1)[-1]


def sources(path: Path, wanted: Callable[[str], bool] | None = None) -> Generator[Source, None, None]:
    """Every file in ``path``, or those whose name (without folders) is ``wanted``, each readable until the next is
    asked for. Folders are walked in natural order of their names. Raises TraceError.
    """
    try:
        if path.is_dir():
            for count, child in enumerate(sorted(path.rglob("*"), key=natural)):
                if count > MAX_MEMBERS:
                    raise TraceError(f"{path}: more than {MAX_MEMBERS} files")
                if child.is_file() and (wanted is None or wanted(child.name)):
                    yield from sources(child)
            return
        with path.open("rb") as file:
            yield from _of_file(path, file, wanted)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (*DAMAGE,) as error:
        raise broken(path, 1, f"the packed data is damaged or not supported ({_short(error)})") from error


@contextmanager
def one(path: Path, member: str | None = None) -> Iterator[Source]:
    """The file ``path`` or its ``member``; without a member the first. Raises TraceError when there is none."""
    walk = sources(path)
    try:
        for source in walk:
            if member is None or source.member == member:
                yield source
                return
        raise TraceError(f"{path}: holds no file{'' if member is None else f' {member!r}'}")
    finally:
        walk.close()


def natural(path: Path | str) -> list[tuple[int, int, str]]:
    """Sorting key in which chunk-2 stands before chunk-10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", str(path))
    return [(0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts]


def _of_file(path: Path, file: io.BufferedReader, wanted: Callable[[str], bool] | None) -> Iterator[Source]:
    head = file.peek()
    if head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist()[:MAX_MEMBERS]:
                if not info.is_dir() and _is_wanted(info.filename, wanted):
                    with archive.open(info) as stream:
                        yield Source(path, info.filename, stream)
        return
    if head.startswith(b"Rar!\x1a\x07"):
        yield from _of_rar(path, wanted)
        return
    if head.startswith(PACKED):
        # closed before the file below it: a buffer left to the collector would warn of an unclosed file
        with io.BufferedReader(_unpacked(file, head), BUFFER_BYTES) as stream:
            yield from _plain_or_tar(path, stream, wanted)
    else:
        yield from _plain_or_tar(path, file, wanted)


def _plain_or_tar(path: Path, stream: io.BufferedReader, wanted: Callable[[str], bool] | None) -> Iterator[Source]:
    at, mark = MAGIC_TAR
    if _peek(stream)[at : at + len(mark)] != mark:
        yield Source(path, None, stream)
        return
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for count, member in enumerate(tar):
            if count > MAX_MEMBERS:
                raise TraceError(f"{path}: more than {MAX_MEMBERS} files")
            inside = tar.extractfile(member) if member.isfile() and _is_wanted(member.name, wanted) else None
            if inside is not None:
                yield Source(path, member.name, inside)


def _of_rar(path: Path, wanted: Callable[[str], bool] | None) -> Iterator[Source]:
    try:
        with rarfile.RarFile(path) as archive:
            for info in archive.infolist()[:MAX_MEMBERS]:
                if info.is_file() and _is_wanted(info.filename, wanted):
                    with archive.open(info) as stream:
                        yield Source(path, info.filename, stream)
    except rarfile.RarCannotExec as error:
        raise TraceError(
            f"{path}: a rar archive, and no program to unpack it is on this machine; install bsdtar "
            "(libarchive-tools), unar, unrar or 7z, or unpack it by hand"
        ) from error


def _unpacked(file: io.BufferedReader, head: bytes) -> Any:
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file) if head.startswith(XZ) else bz2.BZ2File(file)


def _peek(stream: Any) -> bytes:
    """The first bytes; nothing when the data is damaged at once, which reading reports with its line."""
    try:
        return bytes(stream.peek(PEEK_BYTES))
    except DAMAGE:
        return b""


def _is_wanted(name: str, wanted: Callable[[str], bool] | None) -> bool:
    return wanted is None or wanted(name.rsplit("/", 1)[-1])


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
