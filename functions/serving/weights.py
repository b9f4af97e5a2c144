"""Files of a pipeline for one function: from a folder or an object store, proved by sha256 before anything is served.

``smoe_pipeline`` may be an address that fsspec knows (``s3://…``, ``gs://…``, ``https://…``, ``file://…``). What this
function's nodes need, and nothing else, is then fetched into ``smoe_weights_cache``:

    CACHE/blobs/SHA256                   a file's bytes, read-only, named by what they are
    CACHE/pipelines/SHA256/pipeline.json a manifest by its own sha256; next to it links to the blobs, by their names
    CACHE/locks/SHA256                   held by the one replica that fetches this file

Replicas of a node share the cache, so each file is fetched once and its pages are in memory once: weights are mapped
from there, never copied. A blob that does not match its name is deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from functions.serving.settings import FunctionSettings, Gate, SettingsError
from moe.manifest import MAX_MANIFEST_BYTES, FileRef, Manifest, load
from moe.manifest_proof import sha256_of, verify_files
from moe.names import MANIFEST_FILE

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 1024 * 1024

Progress = Callable[[str], object]
"""Called with what is being done, in words; for the reason that an unready replica gives."""


class WeightsError(SettingsError):
    """A file of the pipeline is missing, cannot be fetched, or does not match the manifest."""


@dataclass(frozen=True)
class Need:
    """A file that this function reads: its name in the pipeline's folder, size and sha256."""

    name: str
    ref: FileRef


def needs(manifest: Manifest, nodes: tuple[str, ...], gate: Gate = "attention") -> list[Need]:
    """Files of these nodes; of the ingress: the tokenizer; of experts that route (``gate``) also those with their
    routers. Raises SettingsError for a node that is not there."""
    if nodes == ("ingress",):
        tokenizer = manifest.tokenizer
        names = [] if tokenizer is None else [name for name in (tokenizer.file, tokenizer.chat_template) if name]
    else:
        files = {node.id: node.weights.file for node in manifest.nodes}
        unknown = [node for node in nodes if node not in files]
        if unknown:
            raise SettingsError(f"smoe_nodes names {unknown[0]!r}, which pipeline {manifest.name} does not have")
        names = [files[node] for node in nodes]
        if gate == "experts":
            experts = [manifest.node(node) for node in nodes if manifest.node(node).kind == "expert"]
            names += [files[manifest.segments[expert.layer].id] for expert in experts]
        names = list(dict.fromkeys(names))
    return [Need(name, manifest.files[name]) for name in names]


def provide(settings: FunctionSettings, progress: Progress = lambda words: None, *, prove: bool) -> FunctionSettings:
    """Settings whose ``pipeline_dir`` holds all that this function reads; fetches it where an address is given.

    ``prove``: compare sha256 of what lies there already too. Blocks. Raises WeightsError, SettingsError, ManifestError.
    """
    if settings.pipeline_address is None:
        if prove:
            progress("proving the files")
            manifest = load(settings.pipeline_dir, verify=False)
            verify_files(
                manifest, settings.pipeline_dir, [need.name for need in needs(manifest, settings.nodes, settings.gate)]
            )
        return settings
    if settings.weights_cache is None:
        raise WeightsError(
            f"smoe_pipeline is the address {settings.pipeline_address!r}, so smoe_weights_cache must name a folder"
        )
    folder = Cache(settings.weights_cache, settings.pipeline_address, progress).fetch(settings.nodes, settings.gate)
    return replace(settings, pipeline_dir=folder, pipeline_address=None)


def weights_folder(settings: FunctionSettings, manifest: Manifest, node_id: str) -> Path:
    """Where a node's weights are mapped from: the memory of this replica's node, or the pipeline's folder.

    The folder serves as well where the node's manager does not hold the weights (yet): slower, never wrong.
    """
    if settings.weights_dir is not None:
        held = settings.weights_dir / manifest.name
        if (held / manifest.node(node_id).weights.file).is_file():
            return held
        log.warning("%s is not in the memory of this node; it is mapped from the pipeline's folder", node_id)
    return settings.pipeline_dir


class Cache:
    """The folder of one machine that keeps what was fetched from ``address``."""

    def __init__(self, folder: Path, address: str, progress: Progress) -> None:
        self._folder = folder
        self._address = address.rstrip("/")
        self._progress = progress

    def fetch(self, nodes: tuple[str, ...], gate: Gate = "attention") -> Path:
        """The pipeline's folder in the cache with the files of ``nodes``, proved. Raises SettingsError, MoeError."""
        try:
            folder = self._manifest()
            manifest = load(folder, verify=False)
            for need in needs(manifest, nodes, gate):
                self._link(folder / need.name, self._blob(need))
        except OSError as error:
            raise WeightsError(f"the weights cache {self._folder} cannot be used: {error}") from error
        return folder

    def _manifest(self) -> Path:
        """Fetched at every start, since what an address holds may change; kept under its own sha256."""
        self._progress(f"fetching {MANIFEST_FILE}")
        with self._open(MANIFEST_FILE) as source:
            data = _read(source, MAX_MANIFEST_BYTES, f"{self._address}/{MANIFEST_FILE}")
        folder = self._folder / "pipelines" / hashlib.sha256(data).hexdigest()
        path = folder / MANIFEST_FILE
        if not path.is_file() or path.read_bytes() != data:
            folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(data)
            part.replace(path)
        return folder

    def _blob(self, need: Need) -> Path:
        blob = self._folder / "blobs" / need.ref.sha256
        blob.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(need.ref.sha256):
            if blob.is_file():
                self._progress(f"proving {need.name}")
                if blob.stat().st_size == need.ref.bytes and sha256_of(blob) == need.ref.sha256:
                    return blob
                log.warning("%s in the cache is damaged and is fetched again", need.name)
                blob.unlink()
            self._download(need, blob)
        return blob

    def _download(self, need: Need, blob: Path) -> None:
        part = blob.with_suffix(".part")
        digest, size = hashlib.sha256(), 0
        try:
            with self._open(need.name) as source, part.open("wb") as target:
                while data := _chunk(source, f"{self._address}/{need.name}"):
                    size += len(data)
                    if size > need.ref.bytes:
                        break
                    digest.update(data)
                    target.write(data)
                    self._progress(f"fetching {need.name}: {size >> 20} of {need.ref.bytes >> 20} MiB")
                target.flush()
                os.fsync(target.fileno())
            if size != need.ref.bytes or digest.hexdigest() != need.ref.sha256:
                raise WeightsError(
                    f"{self._address}/{need.name} does not match {MANIFEST_FILE}: it has "
                    + (f"{size}{'+' * (size > need.ref.bytes)} bytes, not {need.ref.bytes}" * (size != need.ref.bytes))
                    + (f"sha256 {digest.hexdigest()}, not {need.ref.sha256}" * (size == need.ref.bytes))
                )
            part.chmod(0o444)
            part.replace(blob)
        finally:
            part.unlink(missing_ok=True)

    def _link(self, path: Path, blob: Path) -> None:
        """A relative link, so that the cache may be mounted anywhere."""
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(blob, path.parent)
        if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115
            return
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        part.symlink_to(target)
        part.replace(path)

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the store as a stream. Raises WeightsError."""
        import fsspec

        url = f"{self._address}/{name}"
        try:
            files, path = fsspec.url_to_fs(url)  # with fsspec.open a store gets the block size, which S3's refuses
            with files.open(path, "rb", block_size=CHUNK_BYTES) as stream:
                yield stream
        except (SettingsError, GeneratorExit):
            raise
        except FileNotFoundError as error:
            raise WeightsError(f"{url} does not exist") from error
        except Exception as error:  # stores have errors of their own kinds
            raise WeightsError(f"{url} could not be read ({type(error).__name__}: {str(error)[:200]})") from error

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = self._folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as lock:
            self._progress(f"waiting for another replica that fetches {name[:12]}")
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _chunk(source: IO[bytes], url: str) -> bytes:
    try:
        return source.read(CHUNK_BYTES)
    except Exception as error:
        raise WeightsError(f"{url} broke off ({type(error).__name__}: {str(error)[:200]})") from error


def _read(source: IO[bytes], most: int, url: str) -> bytes:
    data = b""
    while chunk := _chunk(source, url):
        data += chunk
        if len(data) > most:
            raise WeightsError(f"{url} has more than {most} bytes")
    return data
