"""What is evaluated: workloads × patterns × input sizes × seeds, each under every policy."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from autoscaler.contract import Configuration
from autoscaler.errors import SettingsError
from autoscaler.policies import maker_of
from autoscaler.prices import PriceSheet, load_prices
from autoscaler.settings import ELSEWHERE, SHORT_NAMES, is_policy
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.learnt_files import learnt_file
from evaluation.comparison.quickest import walled
from evaluation.provenance import code_sha256
from simulation.engine.requests import Requests
from simulation.workloads.custom import MOST_TOKENS, CustomPipeline
from simulation.workloads.paper import PAPER_PRICES, PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import WORLDS, World
from traces.splits import Split
from traces.traffic import REPLAYED_PATTERNS

VERSION = 1
"""Version of stored results; older ones are computed again."""
RUN = "evaluation.comparison.run"
"""Module that evaluates; what it imports makes a result."""
FROM_FILE = "file"
"""Pattern of a trace that was given."""
BURST_SUFFIX = "+burst"
"""Ends the name of a policy that runs with standbys, as ``hpa+burst``."""


@dataclass(frozen=True, order=True)
class Group:
    """Runs that share arrivals, lengths and routing, so that policies can be compared in pairs."""

    workload: str
    pattern: str
    tokens: int
    """Mean tokens of a request; 0: the workload's own."""
    seed: int

    @property
    def key(self) -> str:
        return f"{self.workload}.{self.pattern}.{self.tokens}.{self.seed}"


@dataclass(frozen=True)
class Grid:
    """Everything an evaluation is made from. Raises EvaluationError."""

    workloads: tuple[str, ...]
    patterns: tuple[str, ...]
    tokens: tuple[int, ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    start: Configuration | None = None
    """Configuration of every expert when an episode begins, whatever the policy. None: for each expert its own, the
    cheapest found that keep the SLO in the warm-up windows (:mod:`evaluation.bound.oracle`): what an operator finds by
    profiling.
    """
    window_s: float = 30.0
    seconds: float = 3600.0
    mean_rps: float = 20.0
    """Requests per second on average over an episode (:mod:`evaluation.comparison.arrivals`); 0: as many as the trace
    has."""
    warm_up_windows: int = 4
    """Windows at the start that are simulated but not counted."""
    trace: Path | None = None
    """Instead of clips by pattern: a file, or a data set's name (:func:`traces.catalog.resolve`)."""
    row: str | None = None
    """Row of the trace (:func:`traces.loading.load`), as are the next two."""
    start_s: float | None = None
    """Second of the trace at which the replay begins; None: with the minute of the first request."""
    duration_s: float | None = None
    data: Path | None = None
    """Folder of the public traces; without them the synthetic samples are replayed."""
    plans: Path | None = None
    """Folder of stored plans, ``POLICY.WORKLOAD.PATTERN.SEED.json`` or the same with fewer of these parts."""
    settings: Path | None = None
    """Folder of the policies' own settings, ``POLICY.WORKLOAD.PATTERN.toml`` or the same with fewer of these parts."""
    bound: bool = True
    split: Split = "test"
    """Set that hours are taken from; settings are tuned on ``validation``."""
    speed: float = 1.0
    """The trace's time is divided by it; windows, seconds and rate are those of the replay."""
    custom: CustomPipeline | None = None
    """A custom pipeline, which ``workloads`` may name next to the paper's."""
    prices: PriceSheet | None = None
    """Prices of all workloads; None: each workload's own."""
    world: World | None = None
    """Cluster of the paper's workloads (:mod:`simulation.workloads.worlds`); None becomes ``mixed``, and ``unlimited``
    with a custom pipeline, which has a machine of its own."""
    relative_slo: float | None = None
    """λ as so many times the P95 of the same requests with unlimited capacity
    (:mod:`evaluation.comparison.quickest`); None: each workload's own, absolute."""
    hop_factor: float = 1.0
    """Factor of the modelled cost of a hop: a call's exchange over the network, and the ingress between stages."""
    gpu_price_factor: float = 1.0
    """Factor of the price of a GPU."""

    def __post_init__(self) -> None:
        if self.world is None:
            object.__setattr__(self, "world", "mixed" if self.custom is None else "unlimited")
        for name, values, allowed in (
            ("workloads", self.workloads, (*PAPER_WORKLOADS, *([self.custom.pipeline] if self.custom else []))),
            ("patterns", self.patterns, (FROM_FILE,) if self.trace else REPLAYED_PATTERNS),
        ):
            unknown = [value for value in values if value not in allowed]
            if unknown or not values or len(set(values)) < len(values):
                wrong = unknown[0] if unknown else f"{', '.join(values)}, each once"
                raise EvaluationError(f"{name} are {', '.join(allowed)}; got {wrong!r}")
        bad = [policy for policy in self.policies if not is_policy(without_burst(policy))]
        if bad or not self.policies or len(set(self.policies)) < len(self.policies):
            raise EvaluationError(
                f"policies are {', '.join(SHORT_NAMES)}, MODULE:MAKER or FILE.py:MAKER, each once, also with "
                f"{BURST_SUFFIX}; got {', '.join(self.policies)!r}"
            )
        for policy in self.policies:
            _check_loads(without_burst(policy), *maker_file(policy).values())
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise EvaluationError(f"seeds are whole numbers from 0, each once; got {self.seeds}")
        most = 512 if self.custom is None else MOST_TOKENS
        if not self.tokens or min(self.tokens) < 0 or max(self.tokens) > most:
            raise EvaluationError(
                f"input sizes are 1 to {most} mean tokens, or 0 for the workload's own; got {self.tokens}"
            )
        if self.custom is not None and not self.custom.cluster and self.start is not None and self.start.gpu_share:
            raise EvaluationError(
                f"experts cannot start with a GPU share of {self.start.gpu_share:g}: "
                f"{self.custom.pipeline} was profiled "
                f"on cores, so its configurations have no GPU shares"
            )
        if self.trace is None and any(part is not None for part in (self.row, self.start_s, self.duration_s)):
            raise EvaluationError("row, start and duration are parts of a trace, and none is given (--trace)")
        if not self.speed > 0:
            raise EvaluationError(f"the speed at which a trace is replayed is {self.speed:g}; it must be above 0")
        self._check_world()
        counted = self.seconds / self.window_s - self.warm_up_windows
        if self.start is None and not self.warm_up_windows:
            raise EvaluationError("without warm-up windows there is nothing to profile: say what experts start with")
        if not 0 < self.window_s <= self.seconds or not 0 <= self.mean_rps <= 1e5 or counted < 1:
            raise EvaluationError(
                f"windows of {self.window_s:g} s in {self.seconds:g} s at {self.mean_rps:g} requests/s leave "
                f"{counted:.1f} windows after {self.warm_up_windows} of warm-up; at least one is needed"
            )

    def _check_world(self) -> None:
        rules = (
            ("world", self.world in WORLDS, ", ".join(WORLDS)),
            ("relative_slo", self.relative_slo is None or 1 < self.relative_slo < 1e3, "numbers above 1"),
            ("hop_factor", 0 < self.hop_factor < 1e3, "numbers above 0"),
            ("gpu_price_factor", 0 < self.gpu_price_factor < 1e3, "numbers above 0"),
        )
        for name, holds, allowed in rules:
            if not holds:
                raise EvaluationError(f"{name} is {getattr(self, name)}; allowed are {allowed}")
        modelled = (self.world, self.relative_slo, self.hop_factor) == ("unlimited", None, 1.0)
        if self.custom is not None and not modelled:
            raise EvaluationError(
                f"world, relative SLO and hop factor are of the paper's workloads on the modelled cluster; "
                f"{self.custom.pipeline} is a custom pipeline"
            )

    def groups(self) -> Iterator[Group]:
        for workload in self.workloads:
            for pattern in self.patterns:
                for tokens in self.tokens:
                    for seed in self.seeds:
                        yield Group(workload, pattern, tokens, seed)

    def fingerprint(self, group: Group, policy: str, requests_sha256: str) -> str:
        """Hash of all that a run's result depends on; a stored result with another one is not this run's."""
        parts: dict[str, Any] = {
            "version": VERSION,
            "group": asdict(group),
            "policy": policy,
            "requests": requests_sha256,
            "start": None if self.start is None else asdict(self.start),
            "window_s": self.window_s,
            "seconds": self.seconds,
            "warm_up_windows": self.warm_up_windows,
            "split": self.split,
            "world": [self.world, self.relative_slo, self.hop_factor, self.gpu_price_factor],
            "files": [_digest(path) for path in (self.plan_of(policy, group), self.settings_of(policy, group))],
            "learnt": _digest(learnt_file(without_burst(policy), group.workload, self.settings_of(policy, group))),
            **self.made_by(group.workload, policy),
        }
        if (pipeline := self.custom_of(group.workload)) is not None:
            numbers = (pipeline.slo_ms, pipeline.cpu_scale, pipeline.mean_tokens, pipeline.cluster)
            parts["own"] = [*numbers, pipeline.sha256]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def made_by(self, workload: str, policy: str) -> dict[str, str]:
        """Hashes of what no option names: ``code_sha256`` of the code that evaluates and of the policy's own,
        ``prices_sha256`` of the price sheet."""
        pipeline = self.custom_of(workload)
        sheet_of_workload = load_prices(PAPER_PRICES) if pipeline is None else pipeline.prices
        sheet = json.dumps(asdict(self.prices or sheet_of_workload), sort_keys=True)
        return {
            "code_sha256": code_sha256(RUN, *maker_modules(policy)),
            **maker_file(policy),
            "prices_sha256": hashlib.sha256(sheet.encode()).hexdigest(),
        }

    def custom_of(self, workload: str) -> CustomPipeline | None:
        """The custom pipeline, if that is the workload."""
        return self.custom if self.custom is not None and self.custom.pipeline == workload else None

    def workload_of(self, group: Group, mean_rps: float) -> Workload:
        """What is simulated, with the routing of the group's seed and, on the modelled cluster, segments for a load of
        ``mean_rps``, before :meth:`walled`. Raises ProfileError and ``moe.errors.ManifestError``."""
        custom, tokens = self.custom_of(group.workload), group.tokens or None
        if custom is not None:
            workload = custom.served(group.seed, group.tokens, mean_rps)
        else:
            workload = paper_workload(
                group.workload, mean_tokens=tokens, mean_rps=mean_rps, seed=group.seed, hop_factor=self.hop_factor
            )
        prices = self.prices or workload.prices
        return replace(workload, prices=replace(prices, gpu_s=prices.gpu_s * self.gpu_price_factor))

    def walled(self, workload: Workload, requests: Requests, seed: int) -> Workload:
        """``workload`` with the λ of this grid, in its world. Raises EvaluationError where λ is not defined, and where
        segments for the load do not fit."""
        assert self.world is not None  # __post_init__ has named it
        return walled(workload, requests, self.world, self.relative_slo, seed)

    def plan_of(self, policy: str, group: Group) -> Path | None:
        """The stored plan of a policy, where there is one; with standbys its own, else the one without."""
        names = policy, without_burst(policy)
        return next(filter(None, (_nearest(self.plans, name, group, "json") for name in names)), None)

    def settings_of(self, policy: str, group: Group) -> Path | None:
        """Likewise its settings."""
        names = policy, without_burst(policy)
        return next(filter(None, (_nearest(self.settings, name, group, "toml") for name in names)), None)


def maker_modules(policy: str) -> list[str]:
    """The module of a policy's maker where it is loaded by name: no import leads there."""
    policy = without_burst(policy)
    module, colon, _ = ELSEWHERE.get(policy, policy).rpartition(":")
    return [module] if colon and not module.endswith(".py") else []


def maker_file(policy: str) -> dict[str, str]:
    """The digest of a ``FILE.py:MAKER``'s file, so that results of another text of it are not taken for its own."""
    file, _, _ = without_burst(policy).rpartition(":")
    if not file.endswith(".py"):
        return {}
    try:
        return {"policy_file_sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}
    except OSError as error:
        raise EvaluationError(f"policy is {policy!r}, which cannot be loaded: {error}") from error


@cache  # a grid is made again for each search and each part of the runs, and a file's code runs when it is loaded
def _check_loads(policy: str, file_sha256: str = "") -> None:
    """Raises EvaluationError, before anything is simulated, where a custom policy cannot be loaded. A text of a file
    (``file_sha256``) that loads is not loaded again."""
    if ":" not in policy:
        return
    try:
        maker_of(policy)
    except SettingsError as error:
        raise EvaluationError(str(error)) from error


def without_burst(policy: str) -> str:
    """A policy's name without :data:`BURST_SUFFIX`."""
    return policy.removesuffix(BURST_SUFFIX)


def file_name(policy: str) -> str:
    """A policy's name as part of a file's name."""
    return re.sub(r"[^a-z0-9_-]+", "-", policy.lower())


def stem(policy: str, workload: str, pattern: str) -> str:
    """Name, without its ending, of a policy's file for a workload under a pattern."""
    return f"{file_name(policy)}.{workload}.{pattern}"


def _nearest(folder: Path | None, policy: str, group: Group, ending: str) -> Path | None:
    """The policy's file that is made most closely for the group, where there is one."""
    parts = (file_name(policy), group.workload, group.pattern, str(group.seed))
    tried = [".".join((*parts[:count], ending)) for count in range(len(parts), 0, -1)]
    return next((folder / name for name in tried if folder is not None and (folder / name).is_file()), None)


def _digest(path: Path | None) -> str | None:
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
