"""A finished run as plain values: what figures and numbers are made from. Times are Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from traces.results import RequestRecord

ActionKind = Literal["up", "down", "limits"]
Kind = Literal["ingress", "segment", "expert"]


@dataclass(frozen=True)
class PipelineWindow:
    """One window as the controller saw it. None: not measured."""

    end_s: float
    window_s: float
    requests_per_s: float | None = None
    p95_s: float | None = None
    provisioned_cost: float | None = None
    """Money spent in this window: replicas times window seconds times price."""
    busy_cost: float | None = None
    """Replicas times busy seconds times price, the paper's meter."""


@dataclass(frozen=True)
class NodeWindow:
    """One node (ingress, segment or expert) in one window."""

    end_s: float
    node: str
    kind: Kind
    layer: int | None = None
    expert: int | None = None
    tokens_per_s: float | None = None
    replicas: int | None = None


@dataclass(frozen=True)
class Action:
    """One change the controller made, or asked for (``applied`` False: dry run or failed)."""

    time_s: float
    function: str
    kind: ActionKind
    change: str
    reason: str
    applied: bool
    more_per_hour: float = 0.0
    """What it costs more an hour by the run's price sheet; less where negative."""
    node: str = ""
    """The function's node, or its nodes joined by ``_``."""


@dataclass(frozen=True)
class Run:
    """Everything, each list in order of time."""

    windows: tuple[PipelineWindow, ...]
    nodes: tuple[NodeWindow, ...]
    actions: tuple[Action, ...]
    requests: tuple[RequestRecord, ...]
    currency: str = "USD"

    @property
    def start_s(self) -> float:
        """Zero of all time axes: the replay's begin, else the first window's."""
        begun = [r.sent_unix_s - r.sent_s for r in self.requests if r.sent_unix_s is not None and r.sent_s is not None]
        if begun:
            return min(begun)
        return min((window.end_s - window.window_s for window in self.windows), default=0.0)
