"""Index of dispersion of counts: variance over mean of the requests in equal bins, at several scales.

The CV of inter-arrival times weighs every gap the same, whatever lies next to it, so it does not separate an hour whose
rate drifts from one that bursts. The index is the unevenness of the load at a time scale: 1 at every scale for a
Poisson process, towards CV^2 at long scales for a renewal process, and without bound where rates change.

Two rules say what a change of rate does to it. Independent thinning to the share p: ``1 + p (I - 1)``. A doubly
stochastic Poisson process whose rate is multiplied by f: ``1 + f * Var(L) / E(L)``, L the integral of the rate over a
bin, so that the excess over 1 grows with f (Cox and Isham, Point Processes, 1980, chapter 3).
"""

from __future__ import annotations

import numpy as np

from traces.model import FloatArray, Trace

SCALES_S = (0.1, 1.0, 10.0, 60.0)
MINUTE_S = 60.0
HEADING = "dispersion " + "/".join(f"{scale_s:g}" for scale_s in SCALES_S) + " s"
FEWEST_BINS = 20
"""Below, there is no index: a variance of fewer values is noise."""


def counts(arrival_s: FloatArray, duration_s: float, scale_s: float) -> FloatArray:
    """[whole bins in ``duration_s``] float64 requests in each ``scale_s`` seconds."""
    bins = int(duration_s / scale_s + 1e-9)
    number = (arrival_s / scale_s).astype(np.int64)
    return np.bincount(number[number < bins], minlength=bins).astype(np.float64)


def index_of(values: FloatArray) -> float | None:
    """Variance over mean of ``values`` [bins]; None below FEWEST_BINS or where nothing was counted."""
    mean = float(values.mean()) if values.size else 0.0
    return float(values.var()) / mean if values.size >= FEWEST_BINS and mean > 0 else None


def dispersion(trace: Trace, scale_s: float) -> float | None:
    """The index of ``trace`` in bins of ``scale_s`` seconds."""
    return index_of(counts(trace.arrival_s, trace.duration_s, scale_s))


def dispersions(trace: Trace) -> dict[str, float | None]:
    """The index at every scale, by the scale in seconds: JSON-ready."""
    return {f"{scale_s:g}": dispersion(trace, scale_s) for scale_s in SCALES_S}


def expected(source: Trace, factor: float, speed: float = 1.0) -> dict[str, float | None]:
    """The index that theory gives ``source`` after its rate is multiplied by ``factor`` and its time is divided by
    ``speed``, at every scale of the replay.

    Up to 1 the source is thinned; above it the requests of each minute are the rate of a Poisson process, constant
    within the minute (:func:`traces.scale.at_rate`), so the excess below a minute is in proportion to the scale.
    """
    result: dict[str, float | None] = {}
    for scale_s in SCALES_S:
        inside = scale_s * speed
        if factor <= 1:
            unthinned = dispersion(source, inside)
            result[f"{scale_s:g}"] = None if unthinned is None else 1 + factor * (unthinned - 1)
        else:
            path = dispersion(source, max(inside, MINUTE_S))
            result[f"{scale_s:g}"] = None if path is None else 1 + factor * path * min(inside / MINUTE_S, 1.0)
    return result


def as_text(indices: dict[str, float | None]) -> str:
    """For a table's cell: the scales' values in turn."""
    return " ".join("-" if value is None else f"{value:.3g}" for value in indices.values())
