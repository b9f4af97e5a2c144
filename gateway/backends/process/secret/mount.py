"""A function's secrets at ``/var/openfaas/secrets``, where OpenFaaS's functions look for them.

A replica that has secrets gets a mount namespace of its own, in which its folder of secrets appears at that path; the
machine's folders stay as they are and no other process sees it. Where the path does not exist, the nearest folder above
it (``/var``) is rebuilt in the namespace from a small tmpfs with everything in it bound to the same name. That takes
CAP_SYS_ADMIN; without it secrets are found by the variable ``secret_mount_path`` only.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SECRETS = Path("/var/openfaas/secrets")

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_CAP_SYS_ADMIN = 21
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108 (in our own namespace only)

_libc = ctypes.CDLL(None, use_errno=True)


def possible(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process may make mount namespaces."""
    try:
        lines = status.read_text().splitlines()
        effective = next(line for line in lines if line.startswith("CapEff:")).split()[1]
    except (OSError, StopIteration, IndexError):
        return False
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def enter(folder: Path, target: Path = SECRETS) -> None:
    """Let this process, which must have one thread, and what it starts see ``folder`` at ``target``. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare", "mount namespace")
    _mount("none", "/", _MS_REC | _MS_PRIVATE)
    source = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # held, because preparing may cover the folder for a moment
    try:
        if not target.is_dir():
            _rebuild_above(target)
        _mount(f"/proc/self/fd/{source}", str(target), _MS_BIND)
    finally:
        os.close(source)


def _rebuild_above(target: Path) -> None:
    """Make ``target`` exist in this namespace."""
    anchor = next(path for path in target.parents if path.is_dir())
    if anchor == Path("/"):
        raise OSError(f"there is no folder {target.parts[1]} in / to hold {target}")
    stage = next((Path(path) for path in _STAGES if Path(path).is_dir() and not anchor.is_relative_to(path)), None)
    if stage is None:
        raise OSError(f"there is none of the folders {', '.join(_STAGES)} to prepare {target} in")
    _mount("tmpfs", str(stage), _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, kind="tmpfs", options="size=1m,mode=755")
    for entry in anchor.iterdir():
        _repeat(entry, stage / entry.name)
    (stage / target.relative_to(anchor)).mkdir(parents=True)
    _mount(str(stage), str(anchor), _MS_MOVE)


def _repeat(entry: Path, copy: Path) -> None:
    if entry.is_symlink():
        copy.symlink_to(entry.readlink())
        return
    if entry.is_dir():
        copy.mkdir()
    else:
        copy.touch()
    _mount(str(entry), str(copy), _MS_BIND | _MS_REC)


def _mount(source: str, target: str, flags: int, *, kind: str | None = None, options: str | None = None) -> None:
    words = (None if word is None else os.fsencode(word) for word in (source, target, kind))
    done = _libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode())
    _check(done, f"mount {source}", target)


def _check(result: int, what: str, where: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", where)
