"""Downloading a published file with pooch: tried again, checked, and recorded.

pooch downloads into a temporary file next to the target and moves it only when it is whole and checked, so nothing
half-written ever has the final name; a download that breaks off begins again. What was fetched, from where, when, and
its sha256 stand in ``FILE.fetched.json``.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pooch
import requests

from traces.errors import FetchError
from traces.provenance import file_sha256
from traces.published import Checksum, Published

CHUNK_BYTES = 1 << 18
MOST_BYTES = 16 << 30
"""Largest file whose length neither its server nor the list of published ones states."""
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that another try may mend; every other one but 200 is a refusal."""
Progress = Callable[[int, int | None], None]
"""Called with (bytes so far, bytes in all or None)."""


@dataclass(frozen=True)
class FetchSettings:
    """Limits of one fetch."""

    tries: int = 5
    """For each address; pooch waits 1, 2, 3 … s between them, at most 10."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Longest silence of the server."""
    check: bool = True
    """Refuse a file that is not the published one; False records what was fetched."""


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


class NotHereError(Exception):
    """This address will not give the file, however often it is tried."""


def fetch(
    what: Published,
    folder: Path,
    settings: FetchSettings | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """The published file in ``folder/NAME/``. Raises FetchError: a sentence with what to do next."""
    target, settings = what.path_in(folder), settings or FetchSettings()
    present = _already_there(what, target, settings.check)
    if present is not None:
        return present
    refusals: list[str] = []
    for address in what.addresses:
        download = Download(what, address, target, settings, progress)
        try:
            return download.run()
        except NotHereError as error:
            refusals.append(str(error))
    raise FetchError(
        f"{what.name} could not be fetched: {'; '.join(refusals)}. Fetch it elsewhere and put it at {target}"
    )


def digest_of(path: Path, kind: str) -> str:
    """Hexadecimal checksum of a file: sha256, md5, or git's id of the content."""
    if kind == "sha256":
        return file_sha256(path)
    if kind != "git-blob":
        return str(pooch.file_hash(str(path), alg=kind))
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


class Download:
    """One address into one file; pooch calls it for every try."""

    def __init__(
        self, what: Published, address: str, target: Path, settings: FetchSettings, progress: Progress
    ) -> None:
        self._what, self._address, self._target, self._settings = what, address, target, settings
        self._reached = False
        self._server_md5 = ""
        self._checked = "nothing"
        self._bar = _Bar(progress, (what.bytes if settings.check else None) or MOST_BYTES)
        self._get = pooch.HTTPDownloader(
            progressbar=self._bar,
            chunk_size=CHUNK_BYTES,
            timeout=(settings.connect_timeout_s, settings.read_timeout_s),
            headers={"Accept-Encoding": "identity", "User-Agent": "smoe-traces"},
            hooks={"response": self._look_at_answer},
        )

    def run(self) -> Fetched:
        """Raises FetchError and NotHereError."""
        pooch.get_logger().setLevel("WARNING")  # it reports every download on stderr
        tries, name = self._settings.tries, self._target.name
        files = pooch.create(
            self._target.parent, "", registry={name: None}, urls={name: self._address}, retry_if_failed=tries - 1
        )
        try:
            files.fetch(name, downloader=self)
            return self._record()
        except requests.RequestException as error:  # before OSError, which it is too
            host = urlsplit(self._address).hostname
            if self._reached or isinstance(error, requests.ReadTimeout):
                raise NotHereError(f"{host} gave up after {tries} tries ({_short(error)})") from error
            raise NotHereError(
                f"{host} cannot be reached, there seems to be no internet from this machine ({_short(error)})"
            ) from error
        except OSError as error:
            raise FetchError(f"{self._target}: cannot be written ({error.strerror or error})") from error

    def __call__(self, url: str, output_file: str, files: Any) -> None:
        """One try into pooch's temporary file. What is raised here other than requests' errors ends the tries."""
        self._bar.reset()
        self._bar.file = Path(output_file)
        self._get(url, output_file, files)
        if self._settings.check:
            self._checked = self._check(Path(output_file))

    def _look_at_answer(self, response: requests.Response, **_options: Any) -> None:
        """Refuse by status, encryption, size and room before a byte of the body is read."""
        self._reached = True
        status, host = response.status_code, urlsplit(response.url).hostname
        if urlsplit(self._address).scheme == "https" and urlsplit(response.url).scheme != "https":
            raise NotHereError(f"{urlsplit(self._address).hostname} sends on to an address without encryption")
        if response.is_redirect or status in RETRIED:
            return
        if status != 200:
            raise NotHereError(f"{host} answered {status} {response.reason}".rstrip())
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if total is not None:
            if self._settings.check and self._what.bytes is not None and total != self._what.bytes:
                raise NotHereError(f"the file at {host} has {total} bytes, the published one has {self._what.bytes}")
            free = shutil.disk_usage(self._target.parent).free
            if total > free:
                raise FetchError(f"{self._target.parent}: {total} bytes are still to come, {free} are free")
        self._server_md5 = _server_md5(response)

    def _check(self, path: Path) -> str:
        """Against what the file was checked. Raises NotHereError when it is not the published one."""
        size, published_size = path.stat().st_size, self._what.bytes
        if published_size is not None and size != published_size:
            raise NotHereError(f"{size} bytes came, the published file has {published_size}")
        wanted: list[tuple[str, Checksum]] = []
        if self._what.checksum is not None:
            wanted.append((self._what.checksum.kind, self._what.checksum))
        if self._server_md5:
            wanted.append(("md5 of the server", Checksum("md5", self._server_md5)))
        for _, checksum in wanted:
            digest = digest_of(path, checksum.kind)
            if digest != checksum.value:
                raise NotHereError(
                    f"the {checksum.kind} of what came is {digest[:16]}…, the published one is "
                    f"{checksum.value[:16]}…; the download is removed, --no-check takes it as it is"
                )
        return wanted[0][0] if wanted else "size" if published_size is not None else "nothing"

    def _record(self) -> Fetched:
        self._target.chmod(0o644)  # pooch's temporary files are readable by their owner alone
        fetched = Fetched(
            name=self._what.name,
            path=self._target,
            address=self._address,
            bytes=self._target.stat().st_size,
            sha256=digest_of(self._target, "sha256"),
            checked=self._checked,
            licence=self._what.licence,
            fetched_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        record = {**asdict(fetched), "path": self._target.name}
        del record["was_there"]
        _record_path(self._target).write_text(json.dumps(record, indent=2) + "\n")
        return fetched


class _Bar:
    """pooch's progress bar, which counts whole chunks, as calls of a :data:`Progress`."""

    def __init__(self, progress: Progress, most_bytes: int) -> None:
        """``most_bytes``: of a server that states no length."""
        self._progress = progress
        self._most = most_bytes
        self.total = 0
        self.file: Path | None = None
        self._done = 0

    def update(self, size: int) -> None:
        if not self.total and size and self.file is not None and self.file.stat().st_size > self._most:
            raise NotHereError(f"more than {self._most} bytes came, and the server stated no length")
        self._done = min(self._done + size, self.total or self._done + size)
        self._progress(self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        self._done = 0


def _already_there(what: Published, target: Path, check: bool) -> Fetched | None:
    """The record of a file that is on disk and has the checksum it had then; one that was taken without a ``check`` is
    compared with the published one now. Raises FetchError when it changed, or is another."""
    if not target.is_file():
        return None
    sha256, record = digest_of(target, "sha256"), _read_json(_record_path(target))
    unchecked = check and what.checksum is not None and record.get("checked") == "nothing"
    if record.get("sha256") == sha256 and not unchecked:
        fields = ("address", "bytes", "checked", "licence", "fetched_at")
        recorded = {key: record.get(key, "") for key in fields}
        return Fetched(name=what.name, path=target, sha256=sha256, was_there=True, **recorded)
    if what.checksum is not None and digest_of(target, what.checksum.kind) == what.checksum.value:
        size = target.stat().st_size
        return Fetched(what.name, target, what.addresses[0], size, sha256, what.checksum.kind, what.licence, "", True)
    raise FetchError(f"{target} is there but is not what was fetched or published; move it away to fetch it again")


def _server_md5(response: requests.Response) -> str:
    """Hexadecimal md5 that the server states of the file; empty where it states none."""
    encoded = response.headers.get("x-ms-blob-content-md5") or response.headers.get("Content-MD5") or ""
    try:
        md5 = base64.b64decode(encoded, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""
    return md5 if len(md5) == 32 else ""


def _record_path(target: Path) -> Path:
    return target.with_name(target.name + ".fetched.json")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, an empty one where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _short(error: BaseException) -> str:
    """The innermost reason, without objects' addresses."""
    inner: Any = error
    while getattr(inner, "args", None) and isinstance(inner.args[0], BaseException):
        inner = inner.args[0]
    inner = getattr(inner, "reason", None) or inner
    return re.sub(r"<[^>]*>:? ?|HTTPS?Connection(Pool)?\([^)]*\): ", "", " ".join(str(inner).split()))[:200]
