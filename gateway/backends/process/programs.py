"""From a function's spec to what its processes run: entry, environment, limits, timeouts. Checks everything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.backends.process.machines import placement_of
from gateway.backends.process.quantities import Limits, duration_s, gpu_tenths, limits_of, whole_number
from gateway.backends.process.run_folders import CALLER_KEY, LIVE_SETTINGS, SECRETS
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.workers.launcher import WATCHDOG_MODULE, Program
from gateway.contract import FunctionSpec, InvalidSpecError
from gateway.specs import burst_of
from platform_words.labels import BACKGROUND, GPU_MEMORY, NODES_LABEL, PIPELINE_LABEL

WATCHDOG_ENTRY = f"{WATCHDOG_MODULE}:main"
MAX_ENVIRONMENT_BYTES = 96 * 1024
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_PASSED_ON_OWN = ("HOME", "TMPDIR")
"""These are of use to the gateway's user only."""
_LIVE_KEYS = ("max_inflight",)
_RESERVED = ("port",)


@dataclass(frozen=True)
class Prepared:
    """A checked spec."""

    program: Program
    limits: Limits
    max_inflight: int
    write_timeout_s: float
    secrets: frozenset[str]
    places: Mapping[str, int] | None
    """Proportions of replicas by machine; None where no machines are emulated."""
    gpu_tenths: int
    """Share of a GPU, fixed when a process starts; 0 computes on the CPU."""
    gpu_memory: bool
    """Keeps memory on the GPUs without a share."""
    standbys: int = 0
    """Replicas on top of the desired ones, which wait until they are activated."""
    sleeps: bool = False
    """The desired ones wait, too."""

    def needs_new_processes(self, other: Prepared) -> bool:
        """Whether going from ``self`` to ``other`` takes new processes, not only limits and live settings."""
        same = (self.secrets, self.gpu_tenths, self.gpu_memory) == (other.secrets, other.gpu_tenths, other.gpu_memory)
        return not same or _fixed(self.program) != _fixed(other.program)


def _fixed(program: Program) -> tuple[str, dict[str, str]]:
    return program.entry, {key: value for key, value in program.environ.items() if key not in _LIVE_KEYS}


def is_command(spec: FunctionSpec, settings: ProcessSettings) -> bool:
    """Whether ``envProcess`` is run per call, as the image is not one of the table."""
    return image_name(spec.image) not in settings.images


def prepare(
    spec: FunctionSpec, settings: ProcessSettings, folder: Path, gpus: int = 0, user: int | None = None
) -> Prepared:
    """Check a spec and work out what to run. ``folder``: its run folder; ``gpus``: how many this machine shares;
    ``user``: the one that its processes become. Raises InvalidSpecError."""
    entry = settings.images.get(image_name(spec.image))
    command = spec.env_process.strip() or spec.env_vars.get("fprocess", "").strip()
    if entry is None and not command:
        names = ", ".join(sorted(settings.images)) or "none"
        raise InvalidSpecError(
            f"image {spec.image} is not known to this gateway (known: {names}) and {spec.name} gives no envProcess "
            "(fprocess), the command that would be run per call"
        )
    _check_environment(spec)
    environ = _environment(spec, settings, folder, "" if entry is not None else command, user)
    entry = entry or WATCHDOG_ENTRY
    write_timeout_s = duration_s(spec.env_vars, "write_timeout", settings.write_timeout_s)
    return Prepared(
        Program(
            entry,
            spec.name,
            environ,
            str(folder / SECRETS) if spec.secrets else "",
            _group(spec, entry),
            spec.annotations.get(BACKGROUND) == "true",
            user,
        ),
        limits_of(spec, gpus),
        whole_number(spec.env_vars, "max_inflight", 0),
        write_timeout_s,
        frozenset(spec.secrets),
        placement_of(spec, settings.machines),
        gpu_tenths(spec),
        spec.annotations.get(GPU_MEMORY) == "true",
        *burst_of(spec),
    )


def _environment(
    spec: FunctionSpec, settings: ProcessSettings, folder: Path, command: str, user: int | None
) -> dict[str, str]:
    """Variables of a replica; ``command``: what is run per call, empty for a known image."""
    passed_on = _PASSED_ON if user is not None else (*_PASSED_ON, *_PASSED_ON_OWN)
    environ = {key: os.environ[key] for key in passed_on if key in os.environ}
    environ.setdefault("HOME", "/")
    # Several replicas share this machine: threads of one would take the processors that another was promised.
    environ["OMP_NUM_THREADS"] = "1"
    if command:
        environ["fprocess"] = command
    else:
        environ.update(settings.environment(spec))
    environ.update(spec.env_vars)
    if spec.env_process.strip():
        environ["fprocess"] = spec.env_process.strip()
    # Last: neither the spec's variables nor those of the settings may replace them.
    environ.update(
        OPENFAAS_NAME=spec.name,
        OPENFAAS_NAMESPACE=spec.namespace,
        secret_mount_path=str(folder / SECRETS),
        smoe_live_settings=str(folder / LIVE_SETTINGS),
    )
    if settings.caller_keys:
        environ["smoe_caller_key_file"] = str(folder / CALLER_KEY)
    return environ


def _group(spec: FunctionSpec, entry: str) -> str:
    """Functions of one group may take each other's standbys: one pipeline, one entry, and the ingress apart, whose
    standbys prepare what no other has. Empty: no standbys."""
    pipeline = spec.labels.get(PIPELINE_LABEL, "")
    kind = " ingress" if spec.labels.get(NODES_LABEL) == "ingress" else ""
    return f"{entry} {pipeline}{kind}" if pipeline else ""


def image_name(image: str) -> str:
    """An image's name without digest and tag: ``host:5000/smoe/function:1.2`` → ``host:5000/smoe/function``."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def _check_environment(spec: FunctionSpec) -> None:
    for key, value in spec.env_vars.items():
        if not key or "=" in key or "\0" in key + value:
            raise InvalidSpecError(
                f"envVars has the key {key[:40]!r}; keys must not be empty or hold '=', nothing a NUL"
            )
        if key in _RESERVED:
            raise InvalidSpecError(f"envVars.{key} is set by this gateway for each replica; leave it out")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in spec.env_vars.items())
    if size > MAX_ENVIRONMENT_BYTES:
        raise InvalidSpecError(f"envVars hold {size} bytes; at most {MAX_ENVIRONMENT_BYTES} are allowed")
