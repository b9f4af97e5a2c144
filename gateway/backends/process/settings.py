"""Settings of the process backend: every value is given from outside, with its unit in the name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.backends.process.networks import Network
from gateway.contract import FunctionSpec

EnvironmentSource = Mapping[str, str] | Callable[[FunctionSpec], Mapping[str, str]]


@dataclass(frozen=True)
class BackoffSettings:
    """Restart delays after crashes: the first restart is immediate, then first, first·factor, … up to limit."""

    first_s: float = 0.25
    factor: float = 2.0
    limit_s: float = 30.0
    stable_after_s: float = 10.0
    """A replica that was ready for this long before it ended resets the series."""


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of the process backend. Only ``state`` has no default."""

    state: Path
    """The state folder; secrets and logs go below it, mode 0700."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Image name (tag ignored) → ``module:function`` called as ``function(environ, listener, ready)``."""
    command_users: bool = True
    """Functions that are a command have an unprivileged user of their own, where this process may become one."""
    caller_keys: bool = True
    """Workers take calls of the gateway and its ingresses only, which show a key made at each start."""
    preload: tuple[str, ...] = ()
    """Modules the warm parent imports besides those of ``images``."""
    inject_env: EnvironmentSource = field(default_factory=dict)
    """Environment given to replicas of images in the table; a function's own ``envVars`` win."""
    cpu_scale: float = 1.0
    """Real cores per configured core."""
    cpu_period_s: float = 0.01
    """CFS period; a throttled replica waits at most about this long."""
    blanks: int = 4
    """Idle forked processes kept ready to become replicas."""
    standbys: int = 2
    """Prepared workers kept for each pipeline that starts replicas: they lack only function and weights."""
    standby_bytes: int = 1 << 30
    """Own memory that all standbys together may use; those of the pipeline least recently started go first."""
    standby_cores: float = 0.25
    """CPU limit of a blank while it prepares, so that preparing does not slow what serves."""
    standby_floor_cores: float = 0.05
    """CPU limit, in configured cores, of a replica that stands by until a burst."""
    starting_share: float = 0.4
    """Weight by which a replica gets processors until it is ready, against a weight of 1 for each that serves; where
    there is enough for all it is no limit."""
    startup_cpu_boost: float = 1.0
    """Real cores of a replica until it is ready, where its own limit is less; 0: its limit holds from the start."""
    background_share: float = 0.5
    """Weight of functions annotated as background, which yield to all others."""
    machines: tuple[str, ...] = ()
    """Machines emulated on this one, each with a memory folder of its own; the first takes what names none."""
    networks: Mapping[str, Network] = field(default_factory=dict)
    """Machine → the network namespace its replicas live in; other machines share the gateway's network."""
    memory_root: Path | None = None
    """Where the machines' memory folders go; None: shared memory where it is there, else ``state``."""
    exchanges: int = 6
    """Functions that may have more replicas than desired at once because old ones wait for new ones; bounds memory."""
    concurrent_starts: int = field(default_factory=lambda: max(1, min(8, os.cpu_count() or 1)))
    """Replicas starting at once; more only makes each of them slower."""
    start_gap_s: float = 0.01
    """Pause between two launches, and between two replicas that are asked to end, in which calls get the gateway's
    event loop and the processors: what a change of many functions takes is spread over so much more time."""
    host: str = "127.0.0.1"
    python: str = sys.executable
    use_cgroups: bool = True
    cgroup_root: Path = Path("/sys/fs/cgroup")
    proc_root: Path = Path("/proc")
    settle_s: float = 0.25
    """Time from ``draining`` in the feed until SIGTERM."""
    write_timeout_s: float = 30.0
    """Default for functions without ``write_timeout``: how long a drain may take before SIGKILL."""
    ready_timeout_s: float = 60.0
    parent_timeout_s: float = 120.0
    """How long the warm parent may take to import everything."""
    usage_interval_s: float = 1.0
    probe_interval_s: float = 30.0
    probe_timeout_s: float = 10.0
    probe_failures: int = 3
    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    log_lines: int = 1000
    """Lines kept in memory per function for the logs API."""
    log_file_bytes: int = 1 << 20
    """Size at which a replica's log file is rotated (one older file is kept)."""
    log_files: int = 20
    """Log files of ended replicas kept per function."""

    def environment(self, spec: FunctionSpec) -> Mapping[str, str]:
        """``inject_env`` resolved for one function."""
        return self.inject_env(spec) if callable(self.inject_env) else self.inject_env
