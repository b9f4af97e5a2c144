"""From a profile's rows to a latency model of each kind of node.

A call to an idle replica takes ``apart(T) + idle(work(T), limit)``: ``work``, the CPU seconds its cgroup counted, and
``apart``, the seconds in which it did not use its core (connection, client, kernel), both never falling with tokens;
``idle`` is the kernel's limit simulated (``throttle``). A replica that is never idle is worth exactly ``share``
cores, so m calls always in flight take ``together(T, m, share) / share`` each, where ``together`` is m times the CPU
seconds of one of m calls: coalescing makes it grow more slowly than m, and a limit makes it larger, since caches grow
cold whenever the replica is stopped. It never falls with tokens nor with m and never rises with the share.

Fitted are medians in logarithms with isotonic regression (SciPy). The effective tick is the one free number of
the throttling, chosen among a few parts of the machine's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from simulation.arrays import Floats
from simulation.latency.contract import ALONE, Sharing
from simulation.profiles.fit.curves import Curve, Tables, additive_fill, falling_with_share, monotone, monotone_table
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.sharing import fit_sharing
from simulation.profiles.fit.stops import FULL, Stops, fit_stops, limit_of_row
from simulation.profiles.measure.throttle import PERIOD_S, busy_call_s, idle_call_s, limit_of, mean_idle_s
from simulation.profiles.model.errors import ProfileError

TICK_PARTS = (0.25, 0.5, 0.75, 1.0, 1.5)
"""Effective tick over the machine's: besides the tick, wake-ups of other processes notice an overrun too."""
USUAL_TICK_S = 0.004
"""Where the machine's tick is not known."""
UNDISTURBED_CORES = 0.5
"""Rows during which other processes kept more cores busy are left out where a quieter repeat is there."""
ABOUT_AS_UNDISTURBED_CORES = 0.3
"""Repeats that differ by less than this are as quiet as each other."""


@dataclass(frozen=True, eq=False)
class NodeFit:
    """One kind of node. Seconds; tokens are packed tokens of one call."""

    node: str
    work: Curve
    """CPU seconds of one call that finds its replica idle, over tokens."""
    apart: Curve
    """Seconds of such a call outside its core, over tokens."""
    together: Tables
    """CPU seconds of a round of m calls that are always in flight; over tokens × calls × share."""
    apart_busy_s: float
    """Seconds outside its core of a call that comes right after another, at a full core."""
    idle_factors: Floats
    """Quantiles (even probabilities) of seconds over their mean, idle replica and full core."""
    busy_factors: Floats
    """The same with calls always in flight at a full core."""
    tokens: tuple[int, int]
    """Measured range."""
    shares: tuple[float, float]
    """Measured range, real cores."""
    in_pass: float = 1.0
    """CPU seconds of a call within a pass, over those of one that is sent by itself (``work``); 1 where unknown."""
    counted_stops: Stops | None = None
    """What stops cost within passes; None where that was not measured."""
    sharing: Sharing = ALONE
    """What calls cost next to others."""
    period_s: float = PERIOD_S
    """CFS period that its limits were asked for with: the least in force, since small limits get longer ones."""

    @cached_property
    def stops(self) -> Stops:
        """What stops cost: as counted within passes, or, where that was not measured, what single calls always in
        flight take more than at a full core, over how many quotas they take, the median of those that take two or
        more."""
        if self.counted_stops is not None:
            return self.counted_stops
        tokens, more = self.together.tokens, list[float]()
        full_s = self.together_s(tokens, 1, 1.0)
        for share in self.together.shares[self.together.shares < FULL]:
            limited_s = self.together_s(tokens, 1, share)
            quotas = limited_s / limit_of(float(share), USUAL_TICK_S, self.period_s).quota_s
            more += ((limited_s - full_s) / quotas)[quotas >= 2].tolist()
        return Stops(max(0.0, median(more)) if more else 0.0, None)

    def pass_work(self, tokens: ArrayLike) -> Floats:
        """CPU seconds of one call that finds its replica idle, within a pass. Arrays [...] in, [...] out."""
        return np.asarray(self.in_pass * self.work(tokens))

    def together_s(self, tokens: ArrayLike, calls: ArrayLike, share: ArrayLike) -> Floats:
        """CPU seconds of a round of ``calls`` calls (1 and up) of ``tokens`` tokens each at ``share`` real cores.
        Arrays [rows]."""
        t = np.asarray(tokens, dtype=np.float64)
        inside = np.clip(t, self.together.tokens[0], self.together.tokens[-1])
        return np.asarray(self.together(t, calls, share) * (self.work(t) / self.work(inside)))


@dataclass(frozen=True)
class Fit:
    """All kinds of nodes of a profile, and the effective tick of the machine."""

    nodes: dict[str, NodeFit]
    tick_s: float

    @property
    def period_s(self) -> float:
        """CFS period that limits were asked for with."""
        return min(node.period_s for node in self.nodes.values())


def fit(rows: Sequence[Row], tick_s: float) -> Fit:
    """Fit every node that has rows; ``tick_s`` is the machine's, 0 where unknown. Raises ProfileError."""
    measured = least_disturbed([row for row in rows if row.feasible and _fitted(row)])
    names = sorted({row.node for row in measured if row.family == "alone"})
    if not names:
        raise ProfileError("the profile has no measured single calls (family alone), so nothing can be fitted")
    nodes = {name: fit_node(name, [row for row in measured if row.node == name]) for name in names}
    return Fit(nodes, _effective_tick(nodes, measured, tick_s or USUAL_TICK_S))


def _fitted(row: Row) -> bool:
    """Rows within passes have no seconds of calls, only the core's."""
    return row.mean_s is not None or row.family in ("in_pass", "stopped")


def fit_node(name: str, rows: Sequence[Row]) -> NodeFit:
    """Fit one node. Raises ProfileError where its rows do not hold what that takes."""
    alone = [row for row in rows if row.family == "alone"]
    busy = [row for row in rows if row.family in ("busy", "concurrency")]
    if any(row.cpu_s_per_call is None for row in (*alone, *busy)):
        raise ProfileError(f"rows of {name} have no CPU seconds: the machine did not count them, so work is not known")
    full = [row for row in alone if row.share >= FULL] or [row for row in alone if not row.throttled_part]
    if not full or not busy:
        raise ProfileError(f"{name} has no single calls at a full core, or none with calls always in flight")
    work = monotone((row.tokens, cpu_s(row)) for row in alone)
    scale = median(mean_s(row) / median_s(row) for row in full)
    hot = [row for row in busy if row.concurrency == 1 and row.share >= FULL]
    within = [cpu_s(row) / float(work(row.tokens)) for row in rows if row.family == "in_pass"]
    together, most = _together(busy), max(row.tokens for row in alone)
    in_pass = median(within) if within else 1.0
    counted = [row for row in rows if row.family == "stopped"]
    sharing = fit_sharing(
        [row for row in busy if row.share >= FULL and row.concurrency > 1],
        [row for row in counted if within and row.share >= FULL],
        lambda tokens: float(together(tokens, 1, 1.0)),
        lambda tokens: in_pass * float(work(tokens)),
        most,
    )
    return NodeFit(
        node=name,
        work=work,
        apart=monotone(((row.tokens, scale * median_s(row) - cpu_s(row)) for row in full), floor=1e-6),
        together=together,
        apart_busy_s=max(0.0, median(median_s(row) - cpu_s(row) for row in hot)) if hot else 0.0,
        idle_factors=factors(full),
        busy_factors=factors(row for row in busy if row.share >= FULL),
        tokens=(min(row.tokens for row in alone), most),
        shares=(min(row.share for row in alone), max(row.share for row in alone)),
        in_pass=in_pass,
        counted_stops=fit_stops(counted, lambda tokens, calls: float(together(tokens, calls, 1.0)), sharing),
        sharing=sharing,
        period_s=min((row.period_s for row in rows if row.period_s is not None), default=PERIOD_S),
    )


def least_disturbed(rows: Sequence[Row], others_cores: float = UNDISTURBED_CORES) -> list[Row]:
    """Rows measured while other processes left the machine alone; of a point that has none, its least_disturbed
    repeats."""
    points: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (row.node, row.family, row.tokens, row.share, row.memory_mib, row.concurrency)
        points.setdefault(key, []).append(row)
    kept = []
    for repeats in points.values():
        least = min(row.others_cores or 0.0 for row in repeats)
        most = max(others_cores, least + ABOUT_AS_UNDISTURBED_CORES)
        kept += [row for row in repeats if (row.others_cores or 0.0) <= most]
    return kept


def cpu_s(row: Row) -> float:
    """CPU seconds per call of a row that is known to have them."""
    assert row.cpu_s_per_call is not None
    return row.cpu_s_per_call


def mean_s(row: Row) -> float:
    """Mean seconds of a row that is known to have them."""
    assert row.mean_s is not None
    return row.mean_s


def median_s(row: Row) -> float:
    """Median seconds of a row that is known to have them; other processes on the machine move it less than the mean."""
    assert row.p50_s is not None
    return row.p50_s


def factors(rows: Iterable[Row]) -> Floats:
    """Quantiles of seconds over their mean: the mean of the rows' own quantiles, as each row is one distribution.
    Returns [quantiles].

    Without rows that kept their distribution: no scatter.
    """
    kept = [np.array(row.quantiles_s) / row.mean_s for row in rows if row.quantiles_s is not None and row.mean_s]
    if not kept:
        return np.ones(2)
    ratios = np.maximum.accumulate(np.median(kept, axis=0))
    mean = (ratios[:-1] + ratios[1:]).mean() / 2
    return np.asarray(np.maximum(ratios / mean, 1e-6))


def _together(busy: Sequence[Row]) -> Tables:
    """Round times over tokens × calls × share, medians over repeats.

    Shares are those at which several calls at once were measured; single ones count for the nearest of them.
    """
    several = [row for row in busy if row.concurrency > 1] or list(busy)
    tokens = np.array(sorted({row.tokens for row in several}), dtype=np.float64)
    calls = np.array(sorted({row.concurrency for row in busy}), dtype=np.float64)
    shares = sorted({row.share for row in several})

    def nearest(share: float) -> float:
        return min(shares, key=lambda tables: abs(np.log(tables / share)))

    logs = np.full((len(shares), len(tokens), len(calls)), np.nan)
    for layer, place, column in np.ndindex(logs.shape):
        point = (int(tokens[place]), int(calls[column]))
        near = [row for row in busy if (row.tokens, row.concurrency) == point and nearest(row.share) == shares[layer]]
        if near:
            logs[layer, place, column] = np.log(calls[column] * median(cpu_s(row) for row in near))
    whole = np.exp(additive_fill(logs))
    return falling_with_share(shares, [monotone_table(tokens, calls, values) for values in whole])


def _effective_tick(nodes: dict[str, NodeFit], rows: Sequence[Row], tick_s: float) -> float:
    """The part of the machine's tick under which single calls to limited replicas are predicted best."""
    limited = [row for row in rows if row.family == "alone" and row.share < FULL and row.node in nodes]
    if not limited:
        return tick_s

    def error(part: float) -> float:
        return float(
            np.mean([abs(np.log(idle_mean_s(nodes[row.node], row, part * tick_s) / mean_s(row))) for row in limited])
        )

    return min(TICK_PARTS, key=error) * tick_s


def idle_mean_s(node: NodeFit, row: Row, tick_s: float) -> float:
    """The fit's prediction of the mean of a single call under the row's limit."""
    work_s = round(float(node.work(row.tokens)), 6)
    return float(node.apart(row.tokens)) + mean_idle_s(work_s, limit_of_row(row, tick_s))


@dataclass(frozen=True)
class Predicted:
    """Seconds of one point."""

    mean_s: float
    p50_s: float
    p95_s: float


def predict(node: NodeFit, row: Row, tick_s: float) -> Predicted:
    """The fit's prediction for a row of families alone, busy and concurrency."""
    if row.family == "alone":
        return _predict_alone(node, row, tick_s)
    round_s = float(node.together_s(row.tokens, row.concurrency, row.share))
    gap_s = node.apart_busy_s if row.concurrency == 1 else 0.0
    if row.share >= FULL:
        mean, shape = round_s + gap_s, node.busy_factors
        return Predicted(mean, mean * _quantile(shape, 0.5), mean * _quantile(shape, 0.95))
    limit = limit_of_row(row, tick_s)
    seconds = np.concatenate([busy_call_s(round_s * factor, limit, 60, gap_s) for factor in _drawn(node)]) + gap_s
    return Predicted(float(seconds.mean()), float(np.median(seconds)), float(np.quantile(seconds, 0.95)))


def _predict_alone(node: NodeFit, row: Row, tick_s: float) -> Predicted:
    work_s, apart_s = float(node.work(row.tokens)), float(node.apart(row.tokens))
    limit = limit_of_row(row, tick_s)
    seconds = np.concatenate([apart_s * f + idle_call_s(work_s * f, limit) for f in _drawn(node)])
    return Predicted(float(seconds.mean()), float(np.median(seconds)), float(np.quantile(seconds, 0.95)))


def _drawn(node: NodeFit) -> list[float]:
    """A few even draws of the scatter."""
    return [_quantile(node.idle_factors, probability) for probability in np.linspace(0.05, 0.95, 7)]


def _quantile(shape: Floats, probability: float) -> float:
    return float(np.interp(probability, np.linspace(0, 1, len(shape)), shape))
