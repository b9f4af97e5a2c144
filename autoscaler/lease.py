"""Leader election by a Kubernetes Lease: of several controllers one acts, and another takes over when it is gone.

Safe without equal clocks (as client-go's): a standby counts from when it last *saw* the lease change, on its own clock,
and the leader stops by itself when it could not renew for ``deadline_s``, which with one more call ends before any
standby's ``duration_s`` does. A leader that is alive and does nothing (its tick hangs) renews no more and may not act.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from autoscaler.checked import Checked, Positive, Rule
from autoscaler.errors import PlatformError, UnreachableError

log = logging.getLogger("smoe.autoscaler.lease")

Lease = dict[str, Any]


class NotLeaderError(UnreachableError):
    """Another controller may act now, so this one must not."""


class LeaseStore(Protocol):
    """Where the Lease is kept; the Kubernetes client of ``autoscaler.platforms.kubernetes`` is one."""

    namespace: str

    def lease(self, name: str) -> Lease | None: ...

    def put_lease(self, document: Lease) -> Lease:
        """Make it, or replace the form named by its resource version; PlatformError where that is not the last one."""


@dataclass(frozen=True)
class LeaseSettings(Checked):
    """``duration_s + retry_s`` bounds how long nobody leads after a leader died; ``deadline_s`` and one call's
    ``call_s`` must end before ``duration_s``."""

    title = "lease"
    name: str
    identity: str
    duration_s: float = 14.0
    retry_s: Positive = 2.0
    deadline_s: float = 8.0
    call_s: float = 5.0

    @property
    def takeover_s(self) -> float:
        """After so long a controller that may lead does: a dead leader's lease has ended, was seen to, and was
        taken."""
        return self.duration_s + self.retry_s + self.call_s

    def rules(self) -> Iterable[Rule]:
        two_at_once = self.deadline_s + self.call_s >= self.duration_s
        return (
            ("deadline_s", not two_at_once, "with call_s below duration_s, else two could act at once"),
            ("retry_s", self.retry_s < self.deadline_s, "below deadline_s"),
        )


class Elector:
    """One controller's side of the election. ``clock``: seconds that only grow; ``wall``: Unix time, for people.

    ``goes_on``: whether this controller does its work. While it does not, it neither takes nor renews nor leads.
    """

    def __init__(
        self,
        store: LeaseStore,
        settings: LeaseSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._goes_on = goes_on
        self._leads_until_s = float("-inf")
        self._led = False
        """As reported last."""
        self._holds = False
        """Whether the lease was this controller's when it was last read."""
        self._seen = ""
        self._seen_at_s = 0.0
        self._obstacle = "it was not asked for yet"
        """Why the lease was not this controller's when it was last asked for."""

    def leads(self) -> bool:
        """Whether this controller may act now."""
        return self._clock() < self._leads_until_s and self._goes_on()

    def guard(self) -> None:
        """Raises NotLeaderError unless this controller may act now."""
        if not self._goes_on():
            raise NotLeaderError(f"{self._settings.identity} may not act: its tick has stood still for too long")
        if not self.leads():
            raise NotLeaderError(f"{self._settings.identity} does not hold the lease {self._settings.name}")

    def obstacle(self) -> str:
        """Why this controller did not lead when it last asked, in a sentence that names the lease."""
        return f"the lease {self._settings.name} is not this controller's: {self._obstacle}"

    def step(self) -> bool:
        """Take or renew the lease, or look whether its holder is gone; to be called every ``retry_s``."""
        begun_s = self._clock()
        try:
            if self._goes_on():
                self._holds = self._try()
                if self._holds:
                    self._leads_until_s = begun_s + self._settings.deadline_s
        except PlatformError as error:
            self._obstacle = str(error)
            log.warning("lease %s: %s", self._settings.name, error)
        leads = self.leads()
        if leads != self._led:
            why = "" if self._goes_on() else ": its tick hangs"
            log.info("%s %s%s", self._settings.identity, "leads now" if leads else "does not lead any more", why)
            self._led = leads
        return leads

    def resign(self) -> None:
        """Act no more from now on. What was begun may still be under way, so the lease is not given up yet."""
        self._leads_until_s = float("-inf")

    def release(self) -> None:
        """Give the lease back, so that another need not wait for its end; only where nothing of this controller's is
        under way any more."""
        self.resign()
        if not self._holds:
            return
        self._holds = False
        try:
            lease = self._store.lease(self._settings.name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._settings.identity:
                self._store.put_lease({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except PlatformError as error:
            log.warning("lease %s was not given back, it ends by itself: %s", self._settings.name, error)

    def run(self, stop: threading.Event) -> None:
        """Steps until ``stop``, then resigns. For a thread of its own."""
        while not stop.is_set():
            self.step()
            stop.wait(self._settings.retry_s)
        self.resign()

    def _try(self) -> bool:
        lease = self._store.lease(self._settings.name)
        if lease is None:
            self._store.put_lease(self._lease({}, taken=True))
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self._settings.identity:
            self._store.put_lease(self._lease(lease, taken=False))
            return True
        version = str(lease["metadata"].get("resourceVersion"))
        if version != self._seen:
            self._seen, self._seen_at_s = version, self._clock()
        ended = self._clock() - self._seen_at_s >= float(spec.get("leaseDurationSeconds") or self._settings.duration_s)
        if holder and not ended:
            self._obstacle = f"{holder} holds it"
            return False
        self._store.put_lease(self._lease(lease, taken=True))
        return True

    def _lease(self, before: Lease, *, taken: bool) -> Lease:
        now = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = before.get("spec") or {}
        changed = {
            "holderIdentity": self._settings.identity,
            "leaseDurationSeconds": round(self._settings.duration_s),
            "acquireTime": now if taken else spec.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if taken and before else 0),
        }
        metadata = before.get("metadata") or {"name": self._settings.name, "namespace": self._store.namespace}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**kind, "metadata": metadata, "spec": {**spec, **changed}}
