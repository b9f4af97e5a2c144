"""What the live view shows, as plain values. Built from the controller's types in `smoe.view.build`, or by hand in
tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpertCell:
    """One expert in the last window. None: not measured, which is not zero."""

    layer: int
    expert: int
    tokens_per_s: float | None
    replicas: int | None
    ready_replicas: int | None = None
    concurrency_utilisation: float | None = None
    """Mean calls in flight over allowed calls in flight, 0 to 1 and above when calls wait."""


@dataclass(frozen=True)
class DecisionLine:
    """One change the controller made (or would have made)."""

    time_s: float
    """Seconds since the view began."""
    function: str
    change: str
    """Such as ``replicas 1 → 3``."""
    reason: str


@dataclass(frozen=True)
class NodeRow:
    """One machine now. None: not known, because no weights manager reported."""

    node: str
    ready: int
    starting: int = 0
    draining: int = 0
    """Replicas of the pipeline's functions there, by state."""
    weights_bytes: int | None = None
    """Bytes of all weights in its memory."""
    limit_bytes: int | None = None
    """Most that its memory may hold; 0 is no limit."""
    arriving: int | None = None
    """Weights files on their way: those that grew since the last look."""
    arriving_bytes: int | None = None
    """Bytes of these files that have arrived."""
    broken_off: int | None = None
    """Files that are there in part and do not grow."""


@dataclass(frozen=True)
class InstanceRow:
    """An instance of a decoder now."""

    instance: int
    role: str
    """``prefill``, ``decode``, or ``both`` without a scheduler."""
    running: int
    queue: int
    """Prompts that wait for it."""
    arriving: int
    """Texts on their way from other instances."""
    pages_used: int
    pages: int
    """Pages of keys and values."""
    interval_s: float | None = None
    """Mean time between a text's tokens lately."""


@dataclass(frozen=True)
class ViewState:
    """Everything on the screen. ``experts`` may come in any order and need not be complete."""

    pipeline: str
    policy: str
    elapsed_s: float
    window_s: float
    slo_s: float | None = None
    p95_s: float | None = None
    p50_s: float | None = None
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    in_flight: float | None = None
    failed: int | None = None
    requests: int | None = None
    planned: int | None = None
    provisioned_per_hour: float | None = None
    busy_per_hour: float | None = None
    currency: str = "$"
    experts: tuple[ExpertCell, ...] = ()
    segments: tuple[tuple[str, int | None], ...] = ()
    """(node id, replicas) of the ingress and the segments."""
    nodes: tuple[NodeRow, ...] = ()
    """Machines, where replicas have any."""
    instances: tuple[InstanceRow, ...] = ()
    """Those of a decoder."""
    instances_words: str = ""
    """How they are scheduled, and what moved."""
    p95_history_s: tuple[float | None, ...] = ()
    """P95 of past windows, oldest first."""
    decisions: tuple[DecisionLine, ...] = ()
    """Newest last."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
