"""The sMoE paper's baseline "ElasticMoE": each expert is scaled by its own token load. An adaptation of that name.

The system of arXiv 2510.02613 reconfigures a whole MoE model without downtime; it is not a per-expert scaler. The paper
lists it as one "that independently [scales] per-expert configuration based on observed token load", and that is built
here: ``replicas = ceil(tokens/s / (utilisation · tokens/s of one replica))``, a vertical class by the tercile of the
expert's load among all experts, hysteresis on both. It knows nothing of the SLO, of layers, or of concurrency. A
replica's tokens/s are its class's, or measured, in proportion to cores or GPU share; unknown: held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.checked import BelowOne, Checked, FromOne, Positive, PositiveShare, Rule
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal, reached
from autoscaler.errors import ConfigurationError, SettingsError
from autoscaler.policy.demand import ceiling
from autoscaler.policy.rows import by_function, total
from autoscaler.prices import busy_replica_seconds

EXPERTS: frozenset[NodeKind] = frozenset(("expert",))


@dataclass(frozen=True)
class LoadClass(Checked):
    """Vertical configuration of one tercile. None leaves the axis as it is."""

    title = "elasticmoe"
    cpu_cores: float = 0.0
    """Cores of a replica; either this or ``gpu_share``."""
    gpu_share: float = 0.0
    """Share of one GPU."""
    memory_mb: int | None = None
    """MiB of a replica; None leaves the axis alone."""
    concurrency: int | None = None
    """Calls a replica takes at once; None leaves the axis alone."""
    tokens_per_s: Positive | None = None
    """What one replica of this class serves, from a profile. None: measured while it runs, and scaled by compute."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            Configuration(self.memory_mb or 1, self.cpu_cores, self.gpu_share, 1, self.concurrency or 1)
        except ConfigurationError as error:
            raise SettingsError(f"elasticmoe: a load class is not allowed: {error}") from error

    def of(self, present: Configuration) -> Configuration:
        """``present`` with this class's vertical configuration."""
        return Configuration(
            present.memory_mb if self.memory_mb is None else self.memory_mb,
            self.cpu_cores,
            self.gpu_share,
            present.replicas,
            present.concurrency if self.concurrency is None else self.concurrency,
        )


@dataclass(frozen=True)
class TokenLoadSettings(Checked):
    """Our defaults: neither the paper nor the system it names gives any."""

    title = "elasticmoe"
    classes: tuple[LoadClass, ...] = (LoadClass(1.0), LoadClass(2.0), LoadClass(4.0))
    """Vertical configuration of the experts with the least load, the middle ones, and those with the most."""
    utilisation: PositiveShare = 0.7
    """Share of a replica's tokens/s that is planned for."""
    hysteresis: BelowOne = 0.1
    """Replicas go only where the load could grow by this share and still fit fewer."""
    class_windows: FromOne = 3
    """Windows in a row that an expert must be in another tercile before its class changes."""
    min_replicas: int = 1
    max_replicas: int = 8

    def rules(self) -> Iterable[Rule]:
        return (
            ("classes", len(self.classes) == 3, "three, for the terciles of the load"),
            ("min_replicas", 1 <= self.min_replicas <= self.max_replicas, "1 to max_replicas"),
        )


@dataclass(frozen=True)
class TokenLoadState:
    """What is remembered of one expert's function."""

    load_class: int | None = None
    candidate: int | None = None
    """The other tercile that it was in last."""
    windows: float = 0.0
    """How many windows in a row it was."""
    tokens_per_core_s: float | None = None
    """Tokens per second of one busy replica over its compute, measured last."""
    on_gpu: bool = False
    """Whether that was measured on a GPU share; it is no measure for cores then, and the other way round."""


class TokenLoadPolicy:
    """Every expert by its token load; segments and the ingress are none of its business."""

    name = "elasticmoe"

    def __init__(self, settings: TokenLoadSettings | None = None) -> None:
        self.settings = settings or TokenLoadSettings()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        states: dict[str, TokenLoadState] = dict(memory) if isinstance(memory, dict) else {}
        rows = by_function(observation, EXPERTS)
        loads = {function: total([node.tokens_per_s for node in nodes]) for function, nodes in rows.items()}
        classes = terciles({function: load for function, load in loads.items() if load is not None})
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for function, nodes in rows.items():
            present, load = nodes[0].configuration, loads[function]
            if present is None or load is None:
                reasons[function] = f"no data: its {'configuration' if present is None else 'token load'} is not known"
                continue
            state = _measured(states.get(function, TokenLoadState()), nodes, present, observation.window_s)
            states[function] = _classed(state, classes[function], self.settings.class_windows, observation.news)
            configuration, reasons[function] = wanted(states[function], load, present, self.settings)
            if configuration is not None:
                desired[function] = configuration
        return Proposal(desired, reasons, states)


def terciles(loads: Mapping[str, float]) -> dict[str, int]:
    """0, 1 or 2 for each function: the third of all that its load is in. Equal loads share the lower third."""
    ordered = sorted(loads.values())
    return {function: 3 * ordered.index(load) // len(ordered) for function, load in loads.items()}


def wanted(
    state: TokenLoadState, load: float, present: Configuration, settings: TokenLoadSettings
) -> tuple[Configuration | None, str]:
    """Configuration for ``load`` tokens per second and the reason; None where a replica's speed is not yet known."""
    assert state.load_class is not None
    chosen = settings.classes[state.load_class]
    rate = chosen.tokens_per_s or _rate(state, chosen)
    if rate is None:
        return None, "no data: the tokens per second of a replica are not known"
    able = settings.utilisation * rate
    replicas = ceiling(load / able)
    if replicas < present.replicas:
        replicas = min(present.replicas, ceiling(load * (1 + settings.hysteresis) / able))
    replicas = min(max(replicas, settings.min_replicas), settings.max_replicas)
    reason = (
        f"{load:.4g} tokens/s, {rate:.4g} a replica of class {state.load_class}, planned to {settings.utilisation:.0%}"
    )
    return replace(chosen.of(present), replicas=replicas), reason


def _rate(state: TokenLoadState, chosen: LoadClass) -> float | None:
    """Tokens per second of a replica of this class, from those measured, in proportion to compute."""
    if state.tokens_per_core_s is None or state.on_gpu != bool(chosen.gpu_share):
        return None
    return state.tokens_per_core_s * (chosen.gpu_share or chosen.cpu_cores)


def _measured(
    state: TokenLoadState, nodes: list[NodeObservation], present: Configuration, window_s: float
) -> TokenLoadState:
    """With the speed of a busy replica in this window; as before where nothing was served."""
    tokens = total([node.tokens_per_s for node in nodes])
    busy_s = busy_replica_seconds(nodes, present, window_s)
    if not tokens or not busy_s:
        return state
    rate = tokens * window_s / busy_s / (present.gpu_share or present.cpu_cores)
    return replace(state, tokens_per_core_s=rate, on_gpu=bool(present.gpu_share))


def _classed(state: TokenLoadState, load_class: int, windows: int, news: float) -> TokenLoadState:
    """The class follows the tercile once it has been the same other one for so many windows; at first at once."""
    if state.load_class is None or load_class == state.load_class:
        return replace(state, load_class=load_class, candidate=None, windows=0.0)
    count = (state.windows if state.candidate == load_class else 0.0) + news
    if reached(count, windows):
        return replace(state, load_class=load_class, candidate=None, windows=0.0)
    return replace(state, candidate=load_class, windows=count)
