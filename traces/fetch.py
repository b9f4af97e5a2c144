"""Downloading a published file: resumed where it broke off, checked, and recorded.

The bytes go to ``FILE.part`` first (:mod:`traces.transfer`); only a whole, checked file gets its name. What was got,
from where, when, and its sha256 stand in ``FILE.fetched.json``.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import requests

from traces.errors import FetchError
from traces.provenance import file_sha256
from traces.published import Checksum, Published
from traces.transfer import (
    CHUNK_BYTES,
    FetchSettings,
    NotHereError,
    Progress,
    download,
    notes_of,
    part_of,
    read_json,
    size_of,
)


@dataclass(frozen=True)
class Fetched:
    """What lies on disk now; the fields are those of the record."""

    name: str
    path: Path
    address: str
    bytes: int
    sha256: str
    checked: str
    """Against what: ``sha256``, ``git-blob``, ``md5 of the server``, ``size``, or ``nothing``."""
    licence: str
    fetched_at: str
    """UTC, ISO 8601."""
    was_there: bool = False
    """Nothing was downloaded: the file was there and sound."""


def fetch(
    what: Published,
    folder: Path,
    settings: FetchSettings | None = None,
    *,
    progress: Progress = lambda done, total: None,
    pause: Callable[[float], None] = time.sleep,
) -> Fetched:
    """The published file in ``folder/NAME/``. Raises FetchError: a sentence with what to do next."""
    limits = settings or FetchSettings()
    target = what.path_in(folder)
    found = _already_there(what, target, limits)
    if found is not None:
        return found
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            return _from_any_address(what, target, limits, progress, pause)
    except OSError as error:
        raise FetchError(f"{target}: cannot be written ({error.strerror or error})") from error


def digest_of(path: Path, kind: str) -> str:
    """Hexadecimal checksum of a file: sha256, md5, or git's id of the content."""
    if kind == "sha256":
        return file_sha256(path)
    if kind == "git-blob":
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _from_any_address(
    what: Published, target: Path, limits: FetchSettings, progress: Progress, pause: Callable[[float], None]
) -> Fetched:
    refusals: list[str] = []
    with requests.Session() as session:
        for address in what.addresses:
            try:
                download(session, address, what, target, limits, progress, pause)
            except NotHereError as error:
                refusals.append(str(error))
                continue
            return _finish(what, address, target, limits)
    raise FetchError(
        f"{what.name} could not be fetched: {'; '.join(refusals)}. Fetch it elsewhere and put it at {target}"
    )


def _finish(what: Published, address: str, target: Path, limits: FetchSettings) -> Fetched:
    part, noted = part_of(target), read_json(notes_of(target))
    size = size_of(part)
    checked = "nothing"
    if limits.check:
        checked = _check(what, part, noted)
    fetched = Fetched(
        name=what.name,
        path=target,
        address=address,
        bytes=size,
        sha256=digest_of(part, "sha256"),
        checked=checked,
        licence=what.licence,
        fetched_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    part.replace(target)
    notes_of(target).unlink(missing_ok=True)
    record = {**asdict(fetched), "path": target.name}
    del record["was_there"]
    _record(target).write_text(json.dumps(record, indent=2) + "\n")
    return fetched


def _check(what: Published, part: Path, noted: dict[str, Any]) -> str:
    """Against what the file was checked. Raises FetchError, and removes the part, when it is not the published one."""
    size = size_of(part)
    wanted: list[tuple[str, Checksum]] = []
    if what.checksum is not None:
        wanted.append((what.checksum.kind, what.checksum))
    if noted.get("md5"):
        wanted.append(("md5 of the server", Checksum("md5", str(noted["md5"]))))
    if what.bytes is not None and size != what.bytes:
        _discard(part)
        raise FetchError(f"{what.name}: {size} bytes came, the published file has {what.bytes}; the part is removed")
    for _, checksum in wanted:
        got = digest_of(part, checksum.kind)
        if got != checksum.value:
            _discard(part)
            raise FetchError(
                f"{what.name}: the {checksum.kind} of what came is {got[:16]}…, the published one is "
                f"{checksum.value[:16]}…; the part is removed. --no-check takes it as it is"
            )
    return wanted[0][0] if wanted else "size" if what.bytes is not None else "nothing"


def _already_there(what: Published, target: Path, limits: FetchSettings) -> Fetched | None:
    """The record of a file that is on disk and has the checksum it had then. Raises FetchError when it changed."""
    record = read_json(_record(target))
    if not target.is_file():
        return None
    got = digest_of(target, "sha256")
    if record.get("sha256") == got:
        fields = ("address", "bytes", "checked", "licence", "fetched_at")
        kept = {key: record.get(key, "") for key in fields}
        return Fetched(name=what.name, path=target, sha256=got, was_there=True, **kept)
    if what.checksum is not None and digest_of(target, what.checksum.kind) == what.checksum.value:
        return Fetched(
            what.name, target, what.addresses[0], size_of(target), got, what.checksum.kind, what.licence, "", True
        )
    raise FetchError(f"{target} is there but is not what was fetched or published; move it away to fetch it again")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Only one fetch of a file at a time on this machine."""
    lock = target.with_name(target.name + ".lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FetchError(f"{target} is being fetched by another process") from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _record(target: Path) -> Path:
    return target.with_name(target.name + ".fetched.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
