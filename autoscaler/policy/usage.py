"""The decaying histogram of a function's CPU use that Kubernetes' VerticalPodAutoscaler recommends cores from.

Source: kubernetes/autoscaler, vertical-pod-autoscaler/pkg/recommender: util/histogram.go, decaying_histogram.go and
histogram_options.go, numbers from model/aggregations_config.go. Buckets grow by a twentieth from a thousandth of a core
on; a quantile is the end of its bucket.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FIRST_CORES = 0.001
GROWTH = 1.05
LAST = math.ceil(math.log(1000 * (GROWTH - 1) / FIRST_CORES + 1, GROWTH))
"""The last bucket begins at 1,000 cores or more."""
LEAST_WEIGHT = 0.1
"""Least weight of a sample, however little is asked for."""
EMPTY = 0.001 * LEAST_WEIGHT
"""A bucket with less weight counts as empty."""


@dataclass(frozen=True)
class Usage:
    """Samples of one function so far."""

    weights: Mapping[int, float] = field(default_factory=dict)
    """Bucket → weight at the time of the last sample."""
    first_s: float = 0.0
    last_s: float = 0.0
    """Time of the first sample, and of the last one."""
    samples: int = 0
    cores: float = 0.0
    """What a replica was limited to at the last one."""
    since_s: float = 0.0
    """When that was first seen."""

    def with_sample(self, used: float, cores: float, replicas: int, now_s: float, half_life_s: float) -> Usage:
        """After ``replicas`` of ``cores`` used ``used`` cores each: samples weigh as much as was asked for, so that
        those from before a growth count for less."""
        left = 0.5 ** (max(0.0, now_s - self.last_s) / half_life_s)
        weights = {bucket: left * weight for bucket, weight in self.weights.items() if left * weight >= EMPTY}
        bucket = bucket_of(used)
        weights[bucket] = weights.get(bucket, 0.0) + max(cores, LEAST_WEIGHT) * replicas
        before = self if self.samples else replace(self, first_s=now_s)
        since_s = self.since_s if self.samples and cores == self.cores else now_s
        return Usage(weights, before.first_s, now_s, self.samples + replicas, cores, since_s)

    def quantile(self, share: float) -> float:
        """Cores that use stays within for ``share`` (0 to 1) of the weight; 0 without a sample."""
        filled, reached, total = sorted(self.weights), 0.0, sum(self.weights.values())
        for bucket in filled[:-1]:
            reached += self.weights[bucket]
            if reached >= share * total:
                return end_of(bucket)
        return end_of(filled[-1]) if filled else 0.0

    def confidence(self, full_s: float) -> float:
        """1 after ``full_s`` of samples each minute, less after a shorter time or with fewer."""
        return min(self.last_s - self.first_s, 60.0 * self.samples) / full_s


def bucket_of(cores: float) -> int:
    """Number of the bucket, from 0."""
    if cores < FIRST_CORES:
        return 0
    return min(int(math.log(cores * (GROWTH - 1) / FIRST_CORES + 1) / math.log(GROWTH)), LAST)


def end_of(bucket: int) -> float:
    """Cores at which the next bucket begins; of the last one, at which it begins itself."""
    return FIRST_CORES * (GROWTH ** min(bucket + 1, LAST) - 1) / (GROWTH - 1)
