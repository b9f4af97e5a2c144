"""Every number of a state: name, meaning, unit, range, how it is scaled, and the flag that states it is not known.

A number is either *linear*, kept as it is within ``low`` to ``high``, or *logarithmic*: ``low`` becomes -1, ``high`` 1,
and what lies outside (zero too) is cut off. Nothing is learnt from data here, so an encoder never drifts. A number that
is not known is 0 and its flag is 1; several numbers that come from one source share a flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulation.arrays import Floats

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Feature:
    """One number of a state. ``low`` and ``high`` are in ``unit``."""

    name: str
    meaning: str
    unit: str
    low: float
    high: float
    log: bool = False
    flag: str | None = None
    """Name of the flag that is 1 where this number is not known."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the encoded number."""
        low, high = (-1.0, 1.0) if self.log else (self.low, self.high)
        return (min(low, 0.0), max(high, 0.0)) if self.flag else (low, high)


PART = "of λ / n"
"""λ over the number of layers: what each layer may take."""
SLOTS = "calls at once"
"""Seconds of work per second on a mean resource (geometric mean of the resources of Φ)."""


def _flag(name: str, meaning: str) -> Feature:
    return Feature(name, f"1: {meaning}", "0 or 1", 0, 1)


NODE_FEATURES: tuple[Feature, ...] = (
    Feature("expert", "1 for an expert, 0 for a segment", "0 or 1", 0, 1),
    Feature("position", "where in the pass: i / n for segment i, (i + 1/2) / n for layer i", "1", 0, 1),
    Feature("siblings", "K: experts of its layer (1 for a segment)", "experts", 1, 256, True),
    Feature("weights", "M_e of Eq. (2) over α", "MiB", 64, 16384, True),
    Feature("cpu_utilisation", "RU: CPU time used over configured", "1", 0, 1.5, flag="cpu_unknown"),
    Feature("gpu_utilisation", "RU: part of the GPU share in use", "1", 0, 1.5, flag="gpu_unknown"),
    Feature("memory_utilisation", "RU: memory used over configured", "1", 0, 1.5, flag="memory_unknown"),
    Feature(
        "concurrency_utilisation", "CU: calls in flight over slots of ready replicas", "1", 0, 1.5,
        flag="concurrency_unknown",
    ),
    Feature("latency_p95", "EL: P95 of its calls, waiting included", PART, 0.01, 100, True, "latency_unknown"),
    Feature("latency_mean", "mean of its calls, waiting included", PART, 0.01, 100, True, "latency_unknown"),
    Feature("memory", "CC: memory of a replica", "MiB", 128, 10240, True, "configuration_unknown"),
    Feature("cpu_cores", "CC: cores of a replica, 0 with a GPU share", "6 cores", 0, 4, flag="configuration_unknown"),
    Feature("gpu_share", "CC: share of a GPU, 0 with cores", "1", 0, 1, flag="configuration_unknown"),
    Feature("on_gpu", "CC: 1 with a GPU share", "0 or 1", 0, 1, flag="configuration_unknown"),
    Feature("replicas", "CC: replicas configured", "8 replicas", 0, 8, flag="configuration_unknown"),
    Feature("concurrency", "CC: calls at once of a replica", "10 calls", 0, 8, flag="configuration_unknown"),
    Feature("price", "U_φ of a replica", "largest U_φ of Φ", 0, 4, flag="configuration_unknown"),
    Feature("spend", "replicas × U_φ", "largest U_φ of Φ", 0.001, 64, True, "configuration_unknown"),
    Feature("call_time", "a mean call on its resource", PART, 0.01, 100, True, "call_time_unknown"),
    Feature("ready", "ready replicas over configured ones", "1", 0, 2, flag="ready_unknown"),
    Feature("tokens_per_s", "TPS, as work", SLOTS, 1e-4, 100, True, "load_unknown"),
    Feature("requests_per_s", "RPS, as work", SLOTS, 1e-4, 100, True, "load_unknown"),
    Feature("calls", "RPS × window", "calls", 1, 1e5, True, "load_unknown"),
    Feature("in_flight", "mean calls at replicas", "calls", 1e-3, 1000, True, "load_unknown"),
    Feature("waiting", "mean calls waiting for a slot", "calls", 1e-3, 1000, True, "load_unknown"),
    Feature("tokens_per_call", "TPS / RPS", "tokens", 1, 4096, True, "length_unknown"),
    Feature("peak", "memory that Eq. (2) asks of one replica alone", "MiB", 64, 16384, True, "peak_unknown"),
    Feature("load_mean_5", "RPS, mean of the last 5 windows", SLOTS, 1e-4, 100, True, "history_unknown"),
    Feature("load_peak_5", "RPS, largest of the last 5 windows", SLOTS, 1e-4, 100, True, "history_unknown"),
    Feature("token_share", "TS × K", "even shares", 1 / 32, 32, True, "shares_unknown"),
    Feature("request_share", "RS × K", "even shares", 1 / 32, 32, True, "shares_unknown"),
    Feature("entropy", "TRE over ln K (1 for a single expert)", "1", 0, 1, flag="shares_unknown"),
    Feature("straggler", "SR: own EL over the layer's largest", "1", 0, 1, flag="straggler_unknown"),
    Feature("latency_spread", "ELV, as standard deviation", PART, 1e-3, 100, True, "spread_unknown"),
    Feature("layer_flops", "SF, as work", SLOTS, 1e-3, 1000, True, "layer_unknown"),
    Feature("barrier_p95", "P95 from scatter to last gather", PART, 0.01, 100, True, "barrier_unknown"),
    _flag("cpu_unknown", "not known, or no cores"),
    _flag("gpu_unknown", "not known, or no GPU share"),
    _flag("memory_unknown", "not known"),
    _flag("concurrency_unknown", "not known"),
    _flag("latency_unknown", "no call ended, or no data"),
    _flag("configuration_unknown", "not known"),
    _flag("call_time_unknown", "not known: always for segments"),
    _flag("ready_unknown", "not known"),
    _flag("load_unknown", "not known"),
    _flag("length_unknown", "no call, or no data"),
    _flag("peak_unknown", "not known"),
    _flag("history_unknown", "no window with a known load"),
    _flag("shares_unknown", "no work, or no data; always for segments"),
    _flag("straggler_unknown", "no call ended, or no data; always for segments"),
    _flag("spread_unknown", "no expert called, or no data; always for segments"),
    _flag("layer_unknown", "not known; always for segments"),
    _flag("barrier_unknown", "no request passed, or no data; always for segments"),
)  # fmt: skip
"""F numbers of a segment or expert; the names of section 4.2 stand in the meanings (RU, CU, EL, CC, TPS, RPS, TS, RS,
TRE, ELV, SR, SF)."""

SPANS = (1, 2, 5, 10, 30)
"""Windows that a look back covers; the last one is the present window."""


def _looks_back() -> tuple[Feature, ...]:
    rate = "requests in λ"
    features = []
    for span in SPANS:
        what = f"requests, mean of the last {span} windows"
        features.append(Feature(f"load_mean_{span}", what, rate, 0.01, 1e4, True, "history_unknown"))
    for span in SPANS[1:]:
        what = f"requests, busiest of the last {span} windows"
        features.append(Feature(f"load_peak_{span}", what, rate, 0.01, 1e4, True, "history_unknown"))
    for span in SPANS[2:]:
        what = f"largest P95 of the last {span} windows"
        features.append(Feature(f"p95_peak_{span}", what, "λ", 1 / 32, 32, True, "past_latency_unknown"))
        what = f"share of the last {span} windows above λ, of those with an answer"
        features.append(Feature(f"over_{span}", what, "1", 0, 1, flag="past_latency_unknown"))
    return tuple(features)


PIPELINE_FEATURES: tuple[Feature, ...] = (
    Feature("layers", "n", "layers", 1, 256, True),
    Feature("experts", "experts of a mean layer", "experts", 1, 256, True),
    Feature("window", "length of the window", "λ", 1, 1e5, True),
    Feature("fastest", "n mean calls on the fastest resource of Φ", "λ", 1e-3, 1000, True),
    Feature("slowest", "n mean calls on the slowest resource of Φ", "λ", 1e-3, 1000, True),
    Feature("cheapest", "cheapest U_φ of Φ", "largest U_φ of Φ", 1e-4, 1, True),
    Feature("gpu_choices", "part of Φ's resources that are GPU shares", "1", 0, 1),
    Feature("latency_p50", "median of all requests", "λ", 1 / 32, 32, True, "latency_unknown"),
    Feature("latency_p95", "P95 of all requests", "λ", 1 / 32, 32, True, "latency_unknown"),
    Feature("latency_p99", "P99 of all requests", "λ", 1 / 32, 32, True, "latency_unknown"),
    Feature("over", "1 where P95 is above λ", "0 or 1", 0, 1, flag="latency_unknown"),
    Feature("requests", "requests answered in the window", "requests", 1, 1e6, True, "load_unknown"),
    Feature("tokens_per_request", "tokens of a mean request", "tokens", 1, 4096, True, "length_unknown"),
    Feature("failed", "part of the requests answered with an error", "1", 0, 1, flag="failed_unknown"),
    Feature("unfinished", "requests unanswered at the window's end", "requests", 0.1, 1e5, True, "unfinished_unknown"),
    Feature("unfinished_share", "the same over requests that arrive in λ", "1", 0.01, 1e4, True, "unfinished_unknown"),
    Feature("segments", "sum of the segments' mean seconds", "λ", 0.01, 10, True, "segments_unknown"),
    Feature("barriers", "sum of the layers' barrier P95", "λ", 0.01, 100, True, "barriers_unknown"),
    Feature("spend", "replicas × U_φ of a mean expert", "largest U_φ of Φ", 1e-3, 64, True, "configurations_unknown"),
    *_looks_back(),
    Feature("remembered", "windows remembered over 30", "1", 0, 1),
    _flag("latency_unknown", "no request answered, or no data"),
    _flag("load_unknown", "not known"),
    _flag("length_unknown", "no request, or no data"),
    _flag("failed_unknown", "no request, or no data"),
    _flag("unfinished_unknown", "not known, or the rate is not"),
    _flag("segments_unknown", "one is not known"),
    _flag("barriers_unknown", "one is not known"),
    _flag("configurations_unknown", "one is not known"),
    _flag("history_unknown", "no window with a known load"),
    _flag("past_latency_unknown", "no answer in the last 5 windows"),
)  # fmt: skip
"""G numbers of the pipeline as a whole."""


class Scales:
    """The catalogue as arrays, to encode many rows at once."""

    def __init__(self, features: Sequence[Feature]) -> None:
        names = [feature.name for feature in features]
        self._log = np.array([feature.log for feature in features])
        self._low = np.array([feature.low for feature in features], dtype=np.float64)
        self._high = np.array([feature.high for feature in features], dtype=np.float64)
        safe = np.where(self._log, self._low, 1.0)
        self._span = np.log(np.where(self._log, self._high / safe, np.e))
        self._safe = safe
        flags = [name for name in names if any(feature.flag == name for feature in features)]
        self._flags = np.array([names.index(flag) for flag in flags], dtype=np.int64)
        groups = [[feature.flag == flag for feature in features] for flag in flags]
        self._groups = np.array(groups, dtype=np.bool_).reshape(len(flags), len(features))
        self.index = {name: place for place, name in enumerate(names)}

    def encode(self, raw: Floats) -> Floats32:
        """``raw [rows, features]`` in the catalogue's units, NaN where not known (flags: anything) → encoded."""
        unknown = np.isnan(raw)
        cut = np.clip(raw, self._low, self._high)
        scaled = np.where(self._log, 2 * np.log(np.where(self._log, cut, 1.0) / self._safe) / self._span - 1, cut)
        scaled[unknown] = 0.0
        scaled[:, self._flags] = (unknown[:, None, :] & self._groups).any(axis=2)
        return np.asarray(scaled, dtype=np.float32)
