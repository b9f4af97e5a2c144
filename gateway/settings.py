"""Settings of the gateway. Durations are seconds; environment names, where OpenFaaS has one, are in ``main``."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway.memory import MOST_HELD_BYTES
from platform_words.liveness import DEFAULT_S

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GatewaySettings:
    """Settings of the gateway. Only ``state`` has no default."""

    state: Path
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_port: int = 8082
    basic_auth: bool = True
    api_key: bool = False
    """Ask for the key of ``/v1`` on loopback too; beyond it is always asked for."""
    scale_from_zero: bool = True
    upstream_timeout_s: float = 60.0
    """Time from sending a call to a replica until its reply begins."""
    upstream_silence_s: float = DEFAULT_S
    """A call goes on to another replica once the machine of this one has acknowledged nothing for so long; 0: never."""
    start_wait_s: float = 100.0
    """How long a call waits for a function that is starting or was at zero."""
    max_body_bytes: int = 256 * 1024 * 1024
    buffer_bytes: int = 4 * 1024 * 1024
    """Bodies up to this size are held, so that the call can be repeated on another replica."""
    held_bytes: int = MOST_HELD_BYTES
    """Bodies held at a time: of calls under way (beyond it one is refused with 503), of calls that wait, and of replies
    for callbacks. ``memory`` has what fits."""
    untaken_bytes: int = MOST_HELD_BYTES
    """Replies that clients do not take; beyond it the connection that has taken nothing for longest ends."""
    max_connections: int = 4096
    """Connections at a time (0: as many as a third of the files that may be open, which bounds them in any case).
    Beyond it the one that is idle or slow for longest ends; where all have calls under way a request gets 503."""
    max_json_bytes: int = 1024 * 1024
    request_head_timeout_s: float = 10.0
    """What a client may take from its first byte until its request's head is whole."""
    read_timeout_s: float = 60.0
    """Time of a request's body; one that brings 16 KiB a second goes on for as long again."""
    max_head_bytes: int = 64 * 1024
    async_queue: int = 1000
    nats: str | None = field(default=None, repr=False)
    """Address of the NATS server that keeps asynchronous calls (``nats://HOST:4222``, with or without a password);
    None: this process's memory."""
    async_workers: int = 8
    async_body_bytes: int = 4 * 1024 * 1024
    async_held_bytes: int = MOST_HELD_BYTES // 2
    """Heads and bodies of all calls that wait, and as much for replies that are collected or wait in callbacks; both
    are part of ``held_bytes``."""
    async_timeout_s: float = 600.0
    """Time from the start of an asynchronous call until its reply is complete."""
    callback_timeout_s: float = 10.0
    callback_targets: tuple[str, ...] = ()
    """Receivers that callbacks may go to (``HOST``, ``HOST:PORT``, ``*.DOMAIN``); empty: any."""
    settle_s: float = 1.0
    """While draining: how long replies announce that their connections end before idle ones do."""
    drain_s: float = 20.0
    cpu_scale: float = 1.0
    cpu_period_ms: float = 10.0
    """CFS period of CPU limits."""
    images: Mapping[str, str] = field(default_factory=dict)
    command_users: bool = True
    """Commands (``fprocess``) have an unprivileged user of their own, where this process may become one."""
    caller_keys: bool = True
    """Workers take calls of this gateway and its ingresses only."""
    preload: tuple[str, ...] = ()
    pipelines_dir: Path | None = None
    controllers: tuple[str, ...] = ()
    """Addresses of controllers whose views the page shows, in addition to those of the state folder."""
    machines: tuple[str, ...] = ()
    """Machines emulated on this one, each with a memory folder of its own."""
    networks: tuple[str, ...] = ()
    """Network namespaces of machines, ``MACHINE=ADDRESS@FILE``."""
    standbys: int = 2
    """Prepared workers kept for each pipeline."""
    startup_cpu_boost: float = 1.0
    """Real cores of a replica until it is ready, where its limit is less."""
    start_gap_s: float = 0.01
    """Pause between two replicas that start, and between two that end."""
    keeps_functions: bool = True
    """The state folder holds what was deployed; not so where the backend does, as a cluster."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def secrets_dir(self) -> Path:
        return self.state / "secrets"

    @property
    def feed_token_file(self) -> Path:
        return self.secrets_dir / "feed-token"


@dataclass(frozen=True)
class Credentials:
    """Basic auth of ``/system``, the bearer token that may read the replica feed, and the key of ``/v1``. Never
    logged."""

    user: str
    password: str = field(repr=False)
    feed_token: str = field(repr=False)
    api_key: str = field(repr=False)


def ensure_credentials(settings: GatewaySettings) -> Credentials:
    """Read the credentials of the state folder, making those that are missing (mode 0600)."""
    settings.secrets_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    password = _read_or_make(settings.secrets_dir / "basic-auth-password", secrets.token_urlsafe(24))
    try:
        api_key = _read_or_make(settings.secrets_dir / "api-key", secrets.token_urlsafe(24))
    except OSError:  # a cluster's secret, mounted read-only and without a key of its own
        api_key = password
    return Credentials(
        user=_read_or_make(settings.secrets_dir / "basic-auth-user", "admin"),
        password=password,
        feed_token=_read_or_make(settings.feed_token_file, secrets.token_urlsafe(24)),
        api_key=api_key,
    )


def _read_or_make(path: Path, value: str) -> str:
    """A file that others may read is made private, where that can be done: a secret that a cluster mounts cannot."""
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            with suppress(OSError):
                path.chmod(0o600)
                log.warning("%s had mode %o, so that others could read it; it is 600 now", path, mode)
        return path.read_text().strip()
    except FileNotFoundError:
        path.touch(mode=0o600)
        path.write_text(value)
        return value
