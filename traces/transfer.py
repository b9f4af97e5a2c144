"""One address into one part file, in bounded tries; :mod:`traces.fetch` does the rest.

The part file grows over tries and calls. What the server said of the file stands beside it, so that the rest is
asked for only of the same version (HTTP Range with If-Range). Every wait has a limit and so has the number of tries;
a try that brought bytes does not count against it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import requests
import urllib3

from traces.errors import FetchError
from traces.published import Published

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


class _TryAgain(Exception):  # noqa: N818 - not an error of the room, it never leaves this module
    """One try failed in a way that another may mend."""

    def __init__(self, why: str, wait_s: float | None = None, unreachable: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        self.unreachable = unreachable


class NotHereError(Exception):
    """This address will not give the file, whatever is tried."""


def download(
    session: requests.Session,
    address: str,
    what: Published,
    target: Path,
    limits: FetchSettings,
    progress: Progress,
    pause: Callable[[float], None],
) -> None:
    """All bytes into the part file. Raises NotHereError when ``limits.tries`` tries in a row brought none."""
    part = part_of(target)
    fruitless, reached = 0, False
    for _ in range(MOST_TRIES_IN_ALL):
        before = size_of(part)
        try:
            _one_try(session, address, what, target, limits, progress)
            return
        except _TryAgain as error:
            reached = reached or not error.unreachable
            fruitless = 0 if size_of(part) > before else fruitless + 1
            if fruitless >= limits.tries:
                host = urlsplit(address).hostname
                if not reached:
                    raise NotHereError(
                        f"{host} cannot be reached, there seems to be no internet from this machine ({error})"
                    ) from error
                raise NotHereError(f"{host} gave up after {limits.tries} tries ({error})") from error
            waited = limits.first_wait_s * 2.0 ** max(0, fruitless - 1)
            pause(min(LONGEST_WAIT_S, waited if error.wait_s is None else max(waited, error.wait_s)))
    raise NotHereError(f"{urlsplit(address).hostname} broke off {MOST_TRIES_IN_ALL} times")


def _one_try(
    session: requests.Session, address: str, what: Published, target: Path, limits: FetchSettings, progress: Progress
) -> None:
    part, notes = part_of(target), notes_of(target)
    have, known = size_of(part), read_json(notes)
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
        raise _TryAgain(_short(error), unreachable=silent and size_of(part) == 0) from error
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
        raise NotHereError(f"{host} answered {status} {response.reason}".rstrip())
    if limits.check and what.bytes is not None and total is not None and total != what.bytes:
        raise NotHereError(f"the file at {host} has {total} bytes, the published one has {what.bytes}")
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


def _stay_secure(asked: str, got: str) -> None:
    if urlsplit(asked).scheme == "https" and urlsplit(got).scheme != "https":
        raise NotHereError(f"{urlsplit(asked).hostname} sends on to an address without encryption")


def _enough_room(target: Path, total: int | None, have: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if total is not None and total - have > free:
        raise FetchError(f"{target.parent}: {total - have} bytes are still to come, {free} are free")


def _retry_after(response: requests.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() and len(value) < 9 else None


def part_of(target: Path) -> Path:
    """The bytes that have come of ``target``."""
    return target.with_name(target.name + ".part")


def notes_of(target: Path) -> Path:
    """What the server said of them."""
    return target.with_name(target.name + ".part.json")


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, an empty one where there is none."""
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
    return re.sub(r"<[^>]*>:? ?|HTTPS?Connection(Pool)?\([^)]*\): ", "", " ".join(str(inner).split()))[:200]
