"""Memory of a function's process before it holds weights, keys and values, or tokens: measured, by where it runs.

It is the part of M_e in Eq. (2) of the sMoE paper that is not weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PEAK_TOKENS = 8192
"""P of Eq. (2): tokens that calls under way in one replica hold together. Deployments size memory for it, and functions
take no more at once."""

LIMIT_MIN_MB = 128
LIMIT_STEP_MB = 64
"""Memory limits are 128 MiB and steps of 64 MiB above, as in the paper's configuration space."""


CALL_TOKENS = 1024
"""Tokens that an ingress sends in one call at most, but for a longer text."""
SHARE = 0.9
"""alpha of Eq. (2): the part of a memory limit that may be used."""
INGRESS_BODY_BYTES = 8 * 1024 * 1024
"""Largest body that an ingress takes: JSON costs up to 24 times its bytes while it is read."""
INGRESS_ROWS = 40
"""Hidden states that a token on its way costs the ingress at most: 8192 tokens in eight passes at once took 428 MiB of
the default pipeline's, of which 30 are its own."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RuntimeMemory:
    """MiB of one process by the kind of its function; with a worker that serves several nodes the largest counts."""

    expert_mb: int
    segment_mb: int
    ingress_mb: int

    @staticmethod
    def same(memory_mb: int) -> RuntimeMemory:
        """The same number for segments and experts, and nothing known of an ingress."""
        return RuntimeMemory(memory_mb, memory_mb, 0)

    def of(self, kinds: frozenset[str]) -> int:
        """MiB of a process that serves nodes of these kinds (``ingress``, ``segment``, ``expert``)."""
        by_kind = {"ingress": self.ingress_mb, "segment": self.segment_mb, "expert": self.expert_mb}
        return max(by_kind[kind] for kind in kinds)


FORKED = RuntimeMemory(expert_mb=64, segment_mb=64, ingress_mb=160)
"""Workers that a warm parent forks, whose libraries they share (30 MiB of their own were measured)."""
CONTAINER = RuntimeMemory(expert_mb=64, segment_mb=224, ingress_mb=288)
"""Each replica a container with an interpreter, libraries and a watchdog of its own. In MiB, idle and after calls:
experts by NumPy 39 and 58, by torch 163 and 180; segments 166 to 184; the ingress 173 to 254."""
BY_NUMPY = "float32"
"""The dtype of pipelines whose experts a container computes without torch."""


def tokens_that_fit(limit_bytes: int, fixed_bytes: int, bytes_per_token: int) -> int:
    """Tokens that a memory limit has room for at once beyond what is always there: Eq. (2) the other way round."""
    return max(0, int((SHARE * limit_bytes - fixed_bytes) / max(1, bytes_per_token)))


def container_memory(dtype: str) -> RuntimeMemory:
    """Memory of containers that serve a pipeline of this dtype."""
    return CONTAINER if dtype == BY_NUMPY else replace(CONTAINER, expert_mb=CONTAINER.segment_mb)


PROCESS, CONTAINERS = "process", "kubernetes"
"""Orchestrations of this project's backends."""


def runtime_memory(orchestration: str, dtype: str) -> RuntimeMemory:
    """By what ``/system/info`` calls the platform's orchestration: that of the process backend forks its workers."""
    return FORKED if orchestration == PROCESS else container_memory(dtype)
