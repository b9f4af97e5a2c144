"""Hours of a pattern at a rate, as somebody could have sent them, kept apart in train, validation and test.

An hour comes from one of three kinds of source. *stream*: a ServeGen client at its own rate, or a function that is
busier than wanted. *sum*: ServeGen clients in the same hour, superposed until the rate is reached. *profile*: one
function's requests per minute, multiplied as the rate of a Poisson process (:func:`traces.scale.many_users`). What is
over the rate is thinned. The pattern is that of the process as replayed at its rate, not of its source; hours within
:data:`MARGIN` of a border are passed over.

Not every cell can be filled. Sums of independent streams, and many users of one profile, have a CV of 1 or more in the
limit, so *slow* needs streams that are slow by themselves and nearly as busy as wanted; the published clients are so up
to 25 requests/s in the train set, 10 in validation and 5 in test. *bursty* beyond the busiest clients needs profiles.

*diurnal* is a whole day of ServeGen clients whose time is divided so that it fills the episode. Its CV is not looked
at; its index of dispersion at a scale T is that of the day at T times the speed, so a day replayed in an hour varies in
10 s as the day does in 4 min.

Every hour names its parts, factor and seed. Sets are split by function and by time (:mod:`traces.splits`), and no hour
of a function is given twice in one cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from traces import catalog, scale
from traces.arrival_process import hour_cv
from traces.dispersion import dispersions, expected, index_of
from traces.errors import NoMatchError, TraceError
from traces.model import PATTERNS, FloatArray, Pattern, Trace, classify
from traces.rate_tables import RateTable, rate_table
from traces.splits import SPLITS, Split

DIURNAL = "diurnal"
REPLAYED_PATTERNS = (*PATTERNS, DIURNAL)
RATES_RPS = (5.0, 20.0, 50.0, 100.0, 250.0)
STREAMS = ("servegen-large", "servegen-mid", "servegen-small", "servegen-reason", "servegen-image")
PROFILES = ("functions-day", "functions-8h")
DATA_SETS = (*STREAMS, *PROFILES)
HOUR_S, DAY_S = 3600, 86_400
MARGIN = 0.02
"""Share of a border's CV within which a pattern is not certain."""
LEAST_KEPT = 1 / 8
"""A stream is thinned to no less: further down everything is nearly Poisson."""
LEAST_REQUESTS = 100
LEAST_INDEX = 2.0
"""Index of dispersion of a profile's minutes: at 2 half of it is counting noise, which is multiplied as well."""
HOURS_PER_ORDER = 16
MOST_SLOW_RPS: dict[Split, float] = {"train": 20.0, "validation": 8.0, "test": 3.0}
"""Up to these rates the public traces hold several slow hours of each set."""
MOST_OWN_RPS = 250.0
"""Where a stream is replayed at its own rate (0 wanted)."""
MOST_THINNED_DAY_RPS = 4.0
"""A day may be thinned from so many requests/s whatever is wanted: its shape stays."""
ACTIVE_SHARE = 0.95
"""Share of a day's windows with requests; in an hour all have some."""
Kind = Literal["stream", "sum", "profile"]


@dataclass(frozen=True, eq=False)
class Hour:
    """How one hour, or one day, is replayed; arrivals are drawn from it."""

    pattern: str
    mean_rps: float
    """Requests/s of the replay; 0: the sources' own rate."""
    split: Split
    kind: Kind
    table: RateTable
    rows: tuple[int, ...]
    start_s: int
    span_s: int
    """Length of the source: an hour or a day."""
    seconds: float
    """Length of the replay: the source's time is divided by ``speed``."""
    seed: int

    @property
    def speed(self) -> float:
        return self.span_s / self.seconds

    @property
    def parts(self) -> list[tuple[str, str, int]]:
        """(data set, function or client, second) of each source: what makes two hours the same."""
        return [(self.table.name, self.table.names[row], self.start_s) for row in self.rows]

    def source(self) -> Trace:
        """The sources superposed at their own rate and in their own time. Raises TraceError."""
        drawn = [self.table.draw(row, self.start_s, self.span_s, self.seed) for row in self.rows]
        if len(drawn) == 1:
            return drawn[0]
        names = ", ".join(self.table.names[row][:16] for row in self.rows)
        where = f"{self.table.name} from {self.start_s} s, Gamma intervals of the measured CV, seed {self.seed}"
        return scale.superpose(drawn, f"sum of the clients {names} of {where}")

    def factor(self, source: Trace) -> float:
        """On the source's rate."""
        return self.mean_rps / self.speed / source.mean_rps if self.mean_rps else 1.0

    def replay(self) -> Trace:
        """Raises TraceError."""
        return self.replayed(self.source())

    def replayed(self, source: Trace) -> Trace:
        """``source`` at the wanted rate and speed."""
        return scale.compress(scale.at_rate(source, self.mean_rps / self.speed, self.seed), self.speed)

    def as_json(self) -> dict[str, Any]:
        """Parts, numbers of replay and source, and what theory expects of the one from the other."""
        source, replay = _drawn(self)
        return {
            "pattern": self.pattern,
            "mean_rps": replay.mean_rps,
            "split": self.split,
            "kind": self.kind,
            "parts": self.parts,
            "span_s": self.span_s,
            "speed": self.speed,
            "factor": self.factor(source),
            "seed": self.seed,
            "sha256": replay.sha256,
            "requests": replay.requests,
            "iat_cv": replay.iat_cv,
            "source_iat_cv": source.iat_cv,
            "dispersion": dispersions(replay),
            "source_dispersion": dispersions(source),
            "expected_dispersion": expected(source, self.factor(source), self.speed),
            "busiest_second_over_mean": int(np.bincount(replay.arrival_s.astype(np.int64)).max()) / replay.mean_rps,
        }


def choose_hours(
    pattern: str, mean_rps: float, split: Split, count: int, seed: int = 0, *,
    seconds: float = HOUR_S, data: Path | None = None,
) -> list[Hour]:  # fmt: skip
    """``count`` hours in seeded order, no hour of a function twice, one of every source before a second of any.

    ``data``: folder of the public traces, by default the usual one. ``seconds``: length of a replayed day. Raises
    NoMatchError, with why, where there are fewer.
    """
    chosen = list(islice(hours_of(pattern, mean_rps, split, seed, seconds=seconds, data=data), count))
    if len(chosen) < count:
        why = why_few(pattern) if has_sources(data) else f"hours are taken from {', '.join(DATA_SETS)}; none is there"
        raise NoMatchError(
            f"{pattern} at {mean_rps:g} requests/s, {split}: {len(chosen)} hours can be had, {count} wanted; {why}"
        )
    return chosen


def hour_of_seed(
    pattern: str, mean_rps: float, split: Split, seed: int, *, seconds: float = HOUR_S, data: Path | None = None
) -> Hour:
    """The hour that an episode of ``seed`` replays: seeds 0 to 15 have distinct ones, as far as the cell holds so many;
    16 to 31 have the cell in another order and drawn again, and so on. Raises NoMatchError, TraceError."""
    order, index = divmod(seed, HOURS_PER_ORDER)
    drawn, more = _in_order(pattern, mean_rps, split, order, seconds, catalog.data_folder(data))
    drawn.extend(islice(more, max(0, index + 1 - len(drawn))))
    if not drawn:
        choose_hours(pattern, mean_rps, split, 1, order, seconds=seconds, data=data)  # raises with the reason
    return drawn[index % len(drawn)]


@lru_cache(maxsize=32)
def _in_order(
    pattern: str, mean_rps: float, split: Split, order: int, seconds: float, folder: Path | None
) -> tuple[list[Hour], Iterator[Hour]]:
    """The hours of a cell that were drawn so far, which the caller extends, and those to come."""
    return [], hours_of(pattern, mean_rps, split, order, seconds=seconds, data=folder)


def why_few(pattern: str) -> str:
    """Why a cell of ``pattern`` may hold few hours."""
    return {
        "slow": "a sum of independent streams and many users of one profile tend to CV 1, so slow hours are those of "
        "slow clients that are nearly as busy as wanted",
        "normal": "too few clients and functions of this set are busy enough",
        "bursty": "sums tend to CV 1, so bursty hours are those of single clients and functions",
        DIURNAL: "few clients of this set are active for whole days and busy enough",
    }[pattern]


def hours_of(
    pattern: str, mean_rps: float, split: Split, seed: int = 0, *, seconds: float = HOUR_S, data: Path | None = None
) -> Iterator[Hour]:
    """The hours of a cell in seeded order, as far as there are any. Raises TraceError."""
    if pattern not in REPLAYED_PATTERNS or split not in SPLITS:
        allowed = f"patterns are {', '.join(REPLAYED_PATTERNS)} and sets {', '.join(SPLITS)}"
        raise TraceError(f"{allowed}; got {pattern!r} and {split!r}")
    if not 0 <= mean_rps <= 1e5 or not seconds > 0:
        raise TraceError(f"a rate is 0 to 1e5 requests/s and an episode lasts; got {mean_rps:g} and {seconds:g} s")
    span_s, length = (DAY_S, seconds) if pattern == DIURNAL else (HOUR_S, float(HOUR_S))
    folder = catalog.data_folder(data)
    used: set[tuple[str, int, int]] = set()
    for kind, table, rows, start_s in _candidates(pattern, mean_rps * length / span_s, split, span_s, seed, folder):
        keys = {(table.name, row, start_s) for row in rows}
        if keys & used:
            continue
        hour = Hour(pattern, mean_rps, split, kind, table, rows, start_s, span_s, length, seed)
        if pattern == DIURNAL or _certain(_drawn(hour)[1].iat_cv) == pattern:
            used |= keys
            yield hour


@lru_cache(maxsize=1)
def _drawn(hour: Hour) -> tuple[Trace, Trace]:
    """Source and replay: an hour that was checked is often described next."""
    source = hour.source()
    return source, hour.replayed(source)


def has_sources(data: Path | None) -> bool:
    """Whether any of the data sets that hours are taken from is there. Raises TraceError."""
    return bool(_tables(catalog.data_folder(data)))


def _certain(cv: float | None) -> Pattern | None:
    """The pattern of ``cv``; None within the margin of a border."""
    if cv is None:
        return None
    low, high = classify(cv * (1 - MARGIN)), classify(cv * (1 + MARGIN))
    return low if low == high else None


@lru_cache(maxsize=4)
def _tables(folder: Path | None) -> tuple[RateTable, ...]:
    there = {} if folder is None else {dataset.name: dataset.path for dataset in catalog.datasets(folder)}
    return tuple(rate_table(name, there[name]) for name in DATA_SETS if name in there)


Candidate = tuple[Kind, RateTable, tuple[int, ...], int]


def _candidates(
    pattern: str, source_rps: float, split: Split, span_s: int, seed: int, folder: Path | None
) -> list[Candidate]:
    """Streams before sums before profiles, each in seeded order; then one of every source before a second of any."""
    candidates: list[Candidate] = []
    for gather in (_streams, _sums, _profiles):
        some: list[Candidate] = []
        for table in _tables(folder):
            # a shorter file is cut into sets by hours, so that its days would lie in several
            if table.span_s < 5 * DAY_S and span_s == DAY_S:
                continue
            rng = np.random.default_rng((seed, span_s, *table.name.encode()))
            some += gather(table, pattern, source_rps, table.sets(span_s) == SPLITS.index(split), span_s, rng)
        order = np.random.default_rng((seed, len(some))).permutation(len(some))
        candidates += [some[index] for index in order]
    earlier: Counter[tuple[str, tuple[int, ...]]] = Counter()
    rounds = []
    for _, table, rows, _ in candidates:
        rounds.append(earlier[table.name, rows])
        earlier[table.name, rows] += 1
    return [candidates[index] for index in np.argsort(rounds, kind="stable")]


def _streams(
    table: RateTable, pattern: str, source_rps: float, inside: np.ndarray, span_s: int, _: np.random.Generator
) -> list[Candidate]:
    """Single rows, busier than wanted by no more than the thinning allows, whose CV as thinned is of the pattern."""
    requests = table.by(span_s).sum(axis=2)
    own_rps = requests / span_s
    least, most = (source_rps, source_rps / LEAST_KEPT) if source_rps else (LEAST_REQUESTS / span_s, MOST_OWN_RPS)
    most = max(most, MOST_THINNED_DAY_RPS) if pattern == DIURNAL else most
    fits = inside & _active(table, span_s) & (own_rps >= least) & (own_rps <= most)
    if pattern != DIURNAL:
        kept = source_rps / np.maximum(own_rps, 1e-12) if source_rps else np.ones_like(own_rps)
        squared = np.maximum(1 + kept * (_own_cv(table, span_s) ** 2 - 1), 0.0)
        fits &= _are(squared**0.5, pattern)
    elif table.cv is None:
        return []
    return [("stream", table, (int(row),), int(span) * span_s) for row, span in np.argwhere(fits)]


def _sums(
    table: RateTable, pattern: str, source_rps: float, inside: np.ndarray, span_s: int, rng: np.random.Generator
) -> list[Candidate]:
    """Clients that are each less busy than wanted, in random order until they reach the rate together; of slow ones
    for a slow sum. No sum of independent streams stays bursty."""
    if table.cv is None or pattern == "bursty" or not source_rps:
        return []
    own_rps = table.by(span_s).sum(axis=2) / span_s
    fits = inside & _active(table, span_s) & (own_rps < source_rps)
    if pattern == "slow":
        fits &= _are(_own_cv(table, span_s), "slow")
    sums: list[Candidate] = []
    for span in range(fits.shape[1]):
        rows = rng.permutation(np.flatnonzero(fits[:, span]))
        members: list[int] = []
        for row in rows.tolist():
            members.append(row)
            if own_rps[members, span].sum() >= source_rps:
                sums.append(("sum", table, tuple(sorted(members)), span * span_s))
                members = []
    return sums


def _profiles(
    table: RateTable, pattern: str, source_rps: float, inside: np.ndarray, span_s: int, _: np.random.Generator
) -> list[Candidate]:
    """Functions that are less busy than wanted, whose minutes are uneven beyond their counting noise."""
    if table.cv is not None or pattern in ("slow", DIURNAL) or not source_rps:
        return []
    counts = table.by(span_s)
    requests = counts.sum(axis=2)
    fits = inside & (requests >= LEAST_REQUESTS) & (requests < source_rps * span_s)
    chosen: list[Candidate] = []
    for row, span in np.argwhere(fits):
        minutes = counts[row, span]
        scaled = np.rint(minutes * (source_rps * span_s / requests[row, span])).astype(np.int64)
        if (index_of(minutes.astype(np.float64)) or 0.0) >= LEAST_INDEX and _are(hour_cv(scaled[None])[1], pattern)[0]:
            chosen.append(("profile", table, (int(row),), int(span) * span_s))
    return chosen


def _active(table: RateTable, span_s: int) -> np.ndarray:
    """[rows, spans] bool: with requests in all of an hour's windows, nearly all of a day's; of counts always."""
    parts = table.by(span_s)
    if table.cv is None:
        return np.ones(parts.shape[:2], dtype=bool)
    least = 1.0 if span_s == HOUR_S else ACTIVE_SHARE
    active: np.ndarray = (parts > 0).mean(axis=2) >= least
    return active


def _own_cv(table: RateTable, span_s: int) -> FloatArray:
    """[rows, spans] CV of inter-arrival times at the rows' own rates, NaN where nothing is counted."""
    parts = table.by(span_s)
    if table.cv is None:
        rows, spans, steps = parts.shape
        return hour_cv(parts.reshape(-1, steps))[1].reshape(rows, spans)
    cv = table.cv[:, : parts.shape[1] * parts.shape[2]].reshape(parts.shape)
    total = parts.sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a window of n requests has n gaps of mean step / n
        squares = np.where(parts > 0, (1 + cv**2) * table.step_s**2 / parts, 0.0).sum(axis=2)
        relative: FloatArray = squares * total / span_s**2 - 1
    return np.sqrt(np.maximum(relative, 0.0))


def _are(cv: FloatArray, pattern: str) -> np.ndarray:
    """Bool, of ``cv``'s shape."""
    same: np.ndarray = np.isfinite(cv) & (np.digitize(cv, (1.0, 3.0)) == PATTERNS.index(pattern))
    return same
