"""The rows of a profile: one for each point and repeat, one for each kind of transition, and their types on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

QUANTILES = 21
FEWEST = 8
"""Calls from which on a point's whole distribution is kept."""


@dataclass(frozen=True)
class Row:
    """One point, measured once. Seconds are of calls that were answered; ``None`` is not measured.

    Rows of transitions (cold start, drain, resize) have the transition's name as ``family`` and no tokens.
    """

    node: str
    """Node id, of one node of each type."""
    family: str
    """What was varied, or the transition."""
    loop: str
    """paced, closed or open."""
    tokens: int
    """Tokens of a call."""
    texts: int
    """Texts of a call."""
    cpu_cores: float
    """Configured."""
    share: float
    """Real cores: configured × cpu_scale."""
    period_s: float | None
    """Period of the kernel's CPU limit, as set."""
    memory_mib: int
    """Memory limit."""
    concurrency: int
    """Calls at once."""
    rate_rps: float
    """Offered rate of an open loop, 0 otherwise."""
    seed: int
    """Seed of an open loop's arrivals."""
    repeat: int
    """Number of the repeat."""
    feasible: bool
    """Whether it ran."""
    note: str
    """Why it is not feasible, or what was odd; empty otherwise."""
    n: int
    """Calls that were answered."""
    errors: int
    """Calls that were not."""
    seconds: float
    """How long the measurement took."""
    mean_s: float | None = None
    """Mean latency."""
    p50_s: float | None = None
    """Median latency."""
    p95_s: float | None = None
    """95th percentile."""
    p99_s: float | None = None
    """99th percentile."""
    sd_s: float | None = None
    """The sample's standard deviation."""
    quantiles_s: tuple[float, ...] | None = None
    """At even probabilities from 0 to 1 (``QUANTILES`` of them); None for fewer than ``FEWEST`` calls."""
    throughput_rps: float | None = None
    """Answered calls a second."""
    cpu_s_per_call: float | None = None
    """CPU seconds, from the replica's cgroup; of a cold start those of all processes."""
    throttled_part: float | None = None
    """Part of the periods in which the kernel stopped it."""
    waiting_s_per_call: float | None = None
    """Seconds another process had its core, per call: how busy the machine was."""
    others_cores: float | None = None
    """Cores that other processes kept busy meanwhile, the hypervisor's other guests included."""
    batch_calls: float | None = None
    """Mean calls in one product."""
    node_calls: float | None = None
    """Mean calls to segments and experts in one pass (family pass)."""
    memory_bytes: int | None = None
    """Memory in use, from the replica's cgroup."""
    load1: float = 0.0
    """Load average of the last minute, when it was measured."""
    gpu_share: float = 0.0
    """Part of a GPU under MPS; 0 on the CPU (families gpu_…, ``simulation.profiles.measure.gpu``)."""
    beside_share: float = 0.0
    """Part of the same GPU on which a neighbour computed meanwhile."""
    pause_s: float = 0.0
    """Between an answer and the next request (family idle)."""
    stops_per_call: float | None = None
    """How often the CPU limit stopped the replica for each call (families in_pass, stopped)."""


@dataclass(frozen=True)
class Spread:
    """n, mean, percentiles and standard deviation of some seconds."""

    n: int
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    sd_s: float | None = None
    quantiles_s: tuple[float, ...] | None = None


def spread(seconds: Sequence[float]) -> Spread:
    """The summary of ``seconds``; percentiles interpolate, the standard deviation is the sample's."""
    if not seconds:
        return Spread(0)
    values = np.asarray(seconds, dtype=np.float64)
    p50, p95, p99 = (float(x) for x in np.percentile(values, (50, 95, 99)))
    deviation = float(values.std(ddof=min(1, len(values) - 1)))
    shape = None
    if len(values) >= FEWEST:
        shape = tuple(float(np.float32(x)) for x in np.quantile(values, np.linspace(0, 1, QUANTILES)))
    return Spread(len(values), float(values.mean()), p50, p95, p99, deviation, shape)


_TYPES = {"str": pa.string(), "int": pa.int32(), "float": pa.float64(), "bool": pa.bool_()}
_WIDE = {"seed": pa.int64(), "memory_bytes": pa.int64(), "quantiles_s": pa.list_(pa.float32())}
SCHEMA = pa.schema([(x.name, _WIDE.get(x.name) or _TYPES[str(x.type).removesuffix(" | None")]) for x in fields(Row)])
"""Arrow types of the columns, in the order of :class:`Row`."""

COLUMNS = tuple(entry.name for entry in fields(Row))
LATER = frozenset(("gpu_share", "beside_share", "pause_s", "stops_per_call"))
"""Columns that profiles of the same version may lack: they lack a GPU, or pauses or stops."""
