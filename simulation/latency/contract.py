"""The protocol of latency models, and the numbers of a node that they start from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from autoscaler.contract import NodeKind
from simulation.arrays import Bools, Floats

DIGITS = 9
"""Factors are rounded to this many decimals, so that libraries of other machines give the same table."""


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one call of a node asks of any machine. Nodes with equal costs share their tables."""

    kind: NodeKind
    flops_per_token: float
    flops_per_token_squared: float
    """Attention within one text: this times tokens², on top of ``flops_per_token``."""
    flops_per_call: float
    """Independent of tokens, such as the head on the last token."""
    weights_bytes: float
    """Resident: counts for memory (M_e) and for cold starts."""
    touched_bytes: float
    """Weights that one call reads; less than ``weights_bytes`` where a call looks up rows of an embedding."""
    bytes_in_per_token: float
    bytes_out_per_token: float


@dataclass(frozen=True, eq=False)
class Noise:
    """Distribution of a factor with mean 1, as its inverse distribution function on an even grid.

    ``factors [Q] float64``: quantiles at probabilities ``i / (Q - 1)``, never falling, all above 0; linear in between.
    Drawing is one look-up, which gives the same numbers on every machine.
    """

    factors: Floats

    def __post_init__(self) -> None:
        factors = np.ascontiguousarray(self.factors, dtype=np.float64)
        if factors.ndim != 1 or factors.size < 2 or not np.isfinite(factors).all():
            raise ValueError(f"noise factors are a list of at least two finite numbers, got shape {factors.shape}")
        if factors[0] <= 0 or (np.diff(factors) < 0).any():
            raise ValueError("noise factors are quantiles: above 0 and never falling")
        mean = float((factors[:-1] + factors[1:]).sum() / (2 * (factors.size - 1)))
        if abs(mean - 1) > 1e-3:
            raise ValueError(f"noise factors have mean {mean:.6f}; it must be 1, divide them by their mean")
        factors.setflags(write=False)
        object.__setattr__(self, "factors", factors)

    @property
    def cv(self) -> float:
        """Coefficient of variation (standard deviation; the mean is 1)."""
        low, high = self.factors[:-1], self.factors[1:]
        second = float(((low * low + low * high + high * high) / 3).mean())
        return float(np.sqrt(max(0.0, second - 1.0)))

    @classmethod
    def none(cls) -> Noise:
        return cls(np.ones(2))

    @classmethod
    def from_samples(cls, values: ArrayLike, points: int = 129) -> Noise:
        """The empirical distribution of positive ``values``, divided by its mean."""
        quantiles = np.quantile(np.asarray(values, dtype=np.float64), np.linspace(0, 1, points))
        return cls._normalised(quantiles)

    @classmethod
    def lognormal(cls, cv: float, points: int = 257, tail: float = 1e-4) -> Noise:
        """Lognormal with this coefficient of variation, cut off at probabilities ``tail`` and ``1 - tail``."""
        if cv <= 0:
            return cls.none()
        sigma = float(np.sqrt(np.log1p(cv * cv)))
        return cls._normalised(np.exp(sigma * np.array(_deviates(points, tail))))

    @classmethod
    def _normalised(cls, quantiles: Floats) -> Noise:
        mean = float((quantiles[:-1] + quantiles[1:]).sum() / (2 * (quantiles.size - 1)))
        return cls(np.round(quantiles / mean, DIGITS))


@cache
def _deviates(points: int, tail: float) -> tuple[float, ...]:
    """Standard normal quantiles; asked for with every row of every simulation."""
    normal = NormalDist()
    return tuple(normal.inv_cdf(min(max(i / (points - 1), tail), 1 - tail)) for i in range(points))


class LatencyModel(Protocol):
    """Vectorised: ``tokens``, ``cpu_cores``, ``gpu_share`` and ``calls`` broadcast against each other.

    Of ``cpu_cores`` and ``gpu_share`` exactly one is above 0 in each element. Pure: same arguments, same numbers.
    """

    @property
    def name(self) -> str:
        """What it is made of, in words: machine and profile, or device sheet."""

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """Mean seconds of one call alone at a ready replica: from when the ingress wants it until its reply, without
        queueing. Arrays broadcast: [...] in, [...] out.

        Above 0 and never falling with tokens (0 tokens: what an empty call costs).
        """

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        """Work done per second by ``calls`` calls of ``tokens`` tokens each in service at one replica, over that of one
        call alone: 1 for one call, at most ``calls``, above 0. Each call then runs at ``speedup / calls`` of its speed
        alone (processor sharing): ``calls`` when they do not hinder each other, 1 when they share one unit evenly,
        between when a batch amortises weights and overheads. Arrays broadcast: [...] in, [...] out.
        """

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        """Share (0 to 1) of the configured cores or GPU share in use while a replica serves. Arrays broadcast: [...]
        in, [...] out."""

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        """Scatter of a call's seconds around their mean."""

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        """True inside the region that was measured; False where the number is an extrapolation or a model. Arrays
        broadcast: [...] in, [...] out."""


@dataclass(frozen=True)
class Throttle:
    """What a CPU limit leaves of a core; arrays broadcast like the arguments they were made from."""

    burst_s: Floats
    """CPU seconds an idle replica can do at full speed; 0 where nothing is limited."""
    refill: Floats
    """CPU seconds it gets back in a second: real cores, at most 1, as a worker computes on one thread."""
    quota_s: Floats
    """CPU seconds that the kernel grants at once, in periods of ``quota_s / refill``."""
    tick_s: float = 0.0
    """How often the kernel looks whether a running replica has used more than it was granted."""
    stop_s: float = 0.0
    """CPU seconds more that a call takes each time it is stopped: caches are cold when it goes on."""
    after_stop_s: Floats | float = 0.0
    """CPU seconds more of a product that begins after a stop: all that a call does is cold then, not only what was
    under way."""
    cold: bool = False
    """Whether ``after_stop_s`` is added to what a call takes that finds its replica idle (``work_seconds``); else to
    that of one right after another (``again_seconds``)."""


@dataclass(frozen=True)
class Sharing:
    """What calls cost where they are not alone on the machine."""

    further_s: float = 0.0
    """CPU seconds of each call of a batch but the first, besides those of its tokens: it is read and answered by
    itself."""
    in_flight: tuple[float, ...] = (1.0,)
    """How many times its CPU seconds a call takes while one request is in flight, two, three and so on; the last also
    for more. Where more are, machine and caches rest less between calls."""

    def times(self, requests: int) -> float:
        """``in_flight`` of so many, at least one."""
        return self.in_flight[min(requests, len(self.in_flight)) - 1]


ALONE = Sharing()
"""Others change nothing."""


@runtime_checkable
class LimitedLatencyModel(LatencyModel, Protocol):
    """Knows what a CPU limit does while load changes, which one number for each configuration cannot say.

    A replica is a token bucket of CPU seconds: its calls go at the speed of a whole core while there is something in
    it, and at the pace at which it refills when it is empty. ``seconds`` and ``speedup`` of the same model are means
    under the limit, for those who plan without a clock.
    """

    def work_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """Seconds of one call alone on a replica whose cores nothing limits, or with a GPU share. Arrays broadcast:
        [...] in, [...] out."""

    def again_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """As ``work_seconds``, of a call that begins when another has just ended on the replica: at most as long, since
        caches are still warm. Arrays broadcast: [...] in, [...] out."""

    def core_speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        """As ``speedup``, while the bucket holds. Arrays broadcast: [...] in, [...] out."""

    def core_use(self, node: NodeCost, tokens: ArrayLike, calls: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        """Cores (0 to 1) in use while the bucket holds and ``calls`` calls of ``tokens`` tokens are in service. Arrays
        broadcast: [...] in, [...] out."""

    def sharing(self, node: NodeCost, gpu_share: float = 0.0) -> Sharing:
        """What calls cost next to others on the same machine."""

    def throttle(self, node: NodeCost, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Throttle:
        """The bucket of a replica."""
