"""Downloading a published file: resumed where it broke off, checked, and recorded.

The bytes go to ``FILE.part`` first, with what the server said of them in ``FILE.part.json``; a later call asks for
the rest (HTTP Range, tied to the same version by If-Range) and only a whole, checked file gets its name. What was
got, from where, when, and its sha256 stand in ``FILE.fetched.json``. Every wait has a limit and so has the number
of tries; a try that brought bytes does not count against it.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import fcntl
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import requests
import urllib3

from traces.errors import FetchError
from traces.provenance import file_sha256
from traces.published import Checksum, Published

CHUNK_BYTES = 1 << 18
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)
MOST_TRIES_IN_ALL = 50
LONGEST_WAIT_S = 60.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
Progress = Callable[[int, int | None], None]
"""Called with (bytes so far, bytes in all or None)."""


@dataclass(frozen=True)
class FetchSettings:
    """Limits of one fetch."""

    tries: int = 5
    """In a row that bring no bytes, for each address."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Longest silence of the server."""
    first_wait_s: float = 1.0
    """Before the second try; doubles up to a minute. A server's Retry-After is followed up to a minute too."""
    check: bool = True
    """Refuse a file that is not the published one; False records what was got."""


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


class _TryAgain(Exception):  # noqa: N818 - not an error of the room, it never leaves this module
    """One try failed in a way that another may mend."""

    def __init__(self, why: str, wait_s: float | None = None, unreachable: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        self.unreachable = unreachable


class _NotHereError(Exception):
    """This address will not give the file, whatever is tried."""


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
                _download(session, address, what, target, limits, progress, pause)
            except _NotHereError as error:
                refusals.append(str(error))
                continue
            return _finish(what, address, target, limits)
    raise FetchError(
        f"{what.name} could not be fetched: {'; '.join(refusals)}. Fetch it elsewhere and put it at {target}"
    )


def _download(
    session: requests.Session,
    address: str,
    what: Published,
    target: Path,
    limits: FetchSettings,
    progress: Progress,
    pause: Callable[[float], None],
) -> None:
    """All bytes into the part file. Raises _NotHereError when ``limits.tries`` tries in a row brought none."""
    part = _part(target)
    fruitless, reached = 0, False
    for _ in range(MOST_TRIES_IN_ALL):
        before = _size(part)
        try:
            _one_try(session, address, what, target, limits, progress)
            return
        except _TryAgain as error:
            reached = reached or not error.unreachable
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless >= limits.tries:
                host = urlsplit(address).hostname
                if not reached:
                    raise _NotHereError(
                        f"{host} cannot be reached, there seems to be no internet from this machine ({error})"
                    ) from error
                raise _NotHereError(f"{host} gave up after {limits.tries} tries ({error})") from error
            waited = limits.first_wait_s * 2.0 ** max(0, fruitless - 1)
            pause(min(LONGEST_WAIT_S, waited if error.wait_s is None else max(waited, error.wait_s)))
    raise _NotHereError(f"{urlsplit(address).hostname} broke off {MOST_TRIES_IN_ALL} times")


def _one_try(
    session: requests.Session, address: str, what: Published, target: Path, limits: FetchSettings, progress: Progress
) -> None:
    part, notes = _part(target), _notes(target)
    have, known = _size(part), _read_json(notes)
    headers = {"Accept-Encoding": "identity", "User-Agent": "smoe-traces"}
    if have and known.get("address") == address and known.get("version"):
        headers |= {"Range": f"bytes={have}-", "If-Range": str(known["version"])}
    else:
        have = 0
    try:
        with session.get(
            address, headers=headers, stream=True, timeout=(limits.connect_timeout_s, limits.read_timeout_s)
        ) as response:
            _stay_secure(address, response.url)
            begin, total = _begin(response, have, what, limits)
            if begin is None:
                part.unlink(missing_ok=True)
                raise _TryAgain("the part on disk does not fit the file there")
            _enough_room(target, total, begin)
            if not begin:
                notes.write_text(json.dumps(_noted(address, response, total)))
            with part.open("r+b" if begin else "wb") as file:
                file.truncate(begin)
                file.seek(begin)
                _copy(response, file, begin, total, progress)
    except (requests.ConnectTimeout, requests.ConnectionError) as error:
        silent = isinstance(error, requests.ConnectTimeout) or "Read timed out" not in str(error)
        raise _TryAgain(_short(error), unreachable=silent and _size(part) == 0) from error
    except requests.Timeout as error:
        raise _TryAgain(f"no byte for {limits.read_timeout_s:g} s") from error
    except urllib3.exceptions.ReadTimeoutError as error:
        raise _TryAgain(f"no byte for {limits.read_timeout_s:g} s") from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _TryAgain(_short(error)) from error


def _begin(
    response: requests.Response, have: int, what: Published, limits: FetchSettings
) -> tuple[int | None, int | None]:
    """(byte at which the answer begins, bytes of the whole file); begin None: the part on disk is of no use."""
    status, host = response.status_code, urlsplit(response.url).hostname
    if status in RETRIED:
        raise _TryAgain(f"status {status}", _retry_after(response))
    total: int | None
    if status == 206:
        found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != have:
            return None, None
        begin, total = have, None if found[3] == "*" else int(found[3])
    elif status == 200:
        length = response.headers.get("Content-Length", "")
        begin, total = 0, int(length) if length.isdecimal() else None
    elif status == 416:
        return None, None
    else:
        raise _NotHereError(f"{host} answered {status} {response.reason}".rstrip())
    if limits.check and what.bytes is not None and total is not None and total != what.bytes:
        raise _NotHereError(f"the file at {host} has {total} bytes, the published one has {what.bytes}")
    return begin, total


def _copy(response: requests.Response, file: IO[bytes], begin: int, total: int | None, progress: Progress) -> None:
    done = begin
    progress(done, total)
    # read1 gives what has come; iter_content would drop an unfilled chunk when the connection ends
    while chunk := response.raw.read1(CHUNK_BYTES, decode_content=False):
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
    if total is not None and done != total:
        raise _TryAgain(f"{done} of {total} bytes came")


def _finish(what: Published, address: str, target: Path, limits: FetchSettings) -> Fetched:
    part, noted = _part(target), _read_json(_notes(target))
    size = _size(part)
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
    _notes(target).unlink(missing_ok=True)
    record = {**asdict(fetched), "path": target.name}
    del record["was_there"]
    _record(target).write_text(json.dumps(record, indent=2) + "\n")
    return fetched


def _check(what: Published, part: Path, noted: dict[str, Any]) -> str:
    """Against what the file was checked. Raises FetchError, and removes the part, when it is not the published one."""
    size = _size(part)
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
    record = _read_json(_record(target))
    if not target.is_file():
        return None
    got = digest_of(target, "sha256")
    if record.get("sha256") == got:
        fields = ("address", "bytes", "checked", "licence", "fetched_at")
        kept = {key: record.get(key, "") for key in fields}
        return Fetched(name=what.name, path=target, sha256=got, was_there=True, **kept)
    if what.checksum is not None and digest_of(target, what.checksum.kind) == what.checksum.value:
        return Fetched(
            what.name, target, what.addresses[0], _size(target), got, what.checksum.kind, what.licence, "", True
        )
    raise FetchError(f"{target} is there but is not what was fetched or published; move it away to fetch it again")


def _noted(address: str, response: requests.Response, total: int | None) -> dict[str, Any]:
    """What ties a later part to this one; a weak tag ties nothing."""
    tag = response.headers.get("ETag", "")
    version = response.headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag
    coded = response.headers.get("x-ms-blob-content-md5") or response.headers.get("Content-MD5") or ""
    try:
        md5 = base64.b64decode(coded, validate=True).hex()
    except (binascii.Error, ValueError):
        md5 = ""
    return {"address": address, "version": version, "total": total, "md5": md5 if len(md5) == 32 else ""}


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


def _stay_secure(asked: str, got: str) -> None:
    if urlsplit(asked).scheme == "https" and urlsplit(got).scheme != "https":
        raise _NotHereError(f"{urlsplit(asked).hostname} sends on to an address without encryption")


def _enough_room(target: Path, total: int | None, have: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if total is not None and total - have > free:
        raise FetchError(f"{target.parent}: {total - have} bytes are still to come, {free} are free")


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() and len(value) < 9 else None


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _notes(target: Path) -> Path:
    return target.with_name(target.name + ".part.json")


def _record(target: Path) -> Path:
    return target.with_name(target.name + ".fetched.json")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(part.name + ".json").unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(error: BaseException) -> str:
    """The innermost reason, without objects' addresses."""
    inner: Any = error
    while getattr(inner, "args", None) and isinstance(inner.args[0], BaseException):
        inner = inner.args[0]
    inner = getattr(inner, "reason", None) or inner
    return re.sub(r"<[^>]*>:? ?", "", " ".join(str(inner).split()))[:200]
