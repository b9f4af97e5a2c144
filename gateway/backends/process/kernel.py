"""Linux calls that Python does not offer: ``prctl`` for the signal at a parent's death, for the process name and for
rights that cannot come back, and ``setns`` for a network namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNET = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel for ``signal_number`` when the parent dies; ends at once if that has happened already."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(1)


def become_user(user: int, parent_pid: int) -> None:
    """Be ``user``, with the group of that number and no other, from now on and whatever is executed. Raises OSError.

    The kernel forgets the signal at a parent's death with the change, so it is asked for again.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    die_with_parent(parent_pid)


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show; the kernel keeps 15 bytes."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def enter_network(namespace: str) -> None:
    """Move the calling thread to the network namespace of a file; sockets it has stay where they were. OSError."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"the network namespace {namespace} cannot be entered")
    finally:
        os.close(descriptor)


def kill_group(group: int) -> bool:
    """SIGKILL to a process group; False where there is none."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
