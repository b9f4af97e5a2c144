"""Scrapes the targets directly: for installations without a Prometheus server. Reads what ``growth`` computes with."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import requests
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.contract import NAMESPACE
from autoscaler.errors import MetricsError, without_password
from autoscaler.monitor.catalogue import METRICS, SAMPLES
from autoscaler.monitor.failures import in_few_words
from autoscaler.monitor.growth import JOBS, Samples, TargetHistory, readings_of
from autoscaler.state.readings import LARGEST, Readings

TRIES = 2
THREADS = 8
_PREFIXES = tuple(METRICS.values())


def parse_exposition(text: str) -> Samples:
    """The samples of the catalogue in a Prometheus text exposition that are numbers. Raises ValueError."""
    ours = "\n".join(line for line in text.splitlines() if line.startswith(_PREFIXES))
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(ours + "\n"):
        for sample in family.samples:
            value = float(sample.value)
            if sample.name in SAMPLES and 0.0 <= value < LARGEST:
                samples[sample.name, tuple(sorted(sample.labels.items()))] = value
    return samples


class ScrapeSource:
    """Reads the targets that the gateway names in ``/system/targets``, all at each call.

    ``auth``: user and password of the gateway. Ingresses outside of ``namespace`` are left out. Scrapes older than
    ``stale_s`` are not used. What a target counted before its first scrape is of no window: one that was not listed yet
    may have counted for hours and only been unready.
    """

    def __init__(
        self,
        gateway_url: str,
        auth: tuple[str, str] | None,
        timeout_s: float = 3.0,
        stale_s: float = 15.0,
        namespace: str = NAMESPACE,
    ) -> None:
        self._url = gateway_url.rstrip("/") + "/system/targets"
        self._shown = without_password(self._url)
        self._auth = auth
        self._timeout_s = timeout_s
        self._stale_s = stale_s
        self._namespace = namespace
        self._session = _session()
        self._sessions: dict[str, requests.Session] = {}
        self._targets: dict[str, TargetHistory] = {}
        self._longest_s = 0.0

    def read(self, now_s: float, window_s: float) -> Readings:
        """Scrape all targets now and compare with the scrapes of ``window_s`` ago. Never raises."""
        problems: list[str] = []
        self._longest_s = max(self._longest_s, window_s)
        try:
            self._scrape_all(now_s, problems)
        except MetricsError as error:
            problems.append(str(error))
        return readings_of(self._targets, now_s, window_s, problems, self._stale_s)

    def latest(self, now_s: float) -> list[Samples]:
        """What every target that answers has counted until now; nothing where the list cannot be read."""
        try:
            self._scrape_all(now_s, [])
        except MetricsError:
            return []
        return [history.scrapes[-1][1] for history in self._targets.values() if history.scrapes]

    def _scrape_all(self, now_s: float, problems: list[str]) -> None:
        named = self._target_list()
        self._forget(named, now_s - self._longest_s)
        for address, job in named.items():
            history = self._targets.setdefault(address, TargetHistory(job))
            history.listed = True
        for history in self._targets.values():  # the clock was set back: what is to come has not been counted
            while history.scrapes and history.scrapes[-1][0] >= now_s:
                history.scrapes.pop()
        with ThreadPoolExecutor(min(THREADS, max(1, len(named)))) as pool:
            results = list(pool.map(self._scrape, named))
        for (address, job), result in zip(named.items(), results, strict=True):
            if isinstance(result, str):
                problems.append(f"target {address} ({job}) could not be scraped: {result}")
            else:
                self._targets[address].scrapes.append((now_s, result))

    def _forget(self, named: Mapping[str, str], before_s: float) -> None:
        for address, history in list(self._targets.items()):
            history.listed = address in named
            history.forget(before_s)
            if not history.listed and not any(time_s > before_s for time_s, _ in history.scrapes):
                del self._targets[address]
                self._sessions.pop(address, None)

    def _scrape(self, address: str) -> Samples | str:
        """The samples, or why there are none."""
        why = ""
        session = self._sessions.setdefault(address, _session())
        for _ in range(TRIES):
            try:
                reply = session.get(f"http://{address}/metrics", timeout=self._timeout_s)
                reply.raise_for_status()
                return parse_exposition(reply.text)
            except (requests.RequestException, ValueError) as error:
                why = type(error).__name__
        return why

    def _target_list(self) -> dict[str, str]:
        """Address → job. Raises MetricsError."""
        why = ""
        for _ in range(TRIES):
            try:
                reply = self._session.get(self._url, auth=self._auth, timeout=self._timeout_s)
                if reply.status_code in (401, 403):
                    raise MetricsError(f"the list of scrape targets at {self._shown} was refused: wrong password")
                reply.raise_for_status()
                entries = [(entry["targets"], entry.get("labels", {})) for entry in reply.json()]
                return {
                    str(address): str(labels["job"])
                    for addresses, labels in entries
                    if labels.get("job") in JOBS and self._is_here(labels)
                    for address in addresses
                }
            except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
                why = in_few_words(error)
        raise MetricsError(f"the list of scrape targets at {self._shown} could not be read ({why})")

    def _is_here(self, labels: Mapping[str, str]) -> bool:
        """Whether a target is a gateway, or an ingress of this namespace: pipelines of others may have its name."""
        function = labels.get("function_name", "")
        return not function or function.endswith(f".{self._namespace}")


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return session
