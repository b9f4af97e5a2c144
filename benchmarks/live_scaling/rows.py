"""The rows of ``benchmarks.live_scaling``: each is a way to scale, measured on a gateway of its own under steady
load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil

from benchmarks.harness.running import RunningGateway, local_gateway, running_gateway
from benchmarks.harness.scaling_watch import FeedWatch, Picture, Scales, Weight
from benchmarks.harness.steady_load import Answers, Load, SteadyLoad
from benchmarks.live_scaling.ablations.fresh import AFTER
from gateway.backends.process.machines import PREFIX, memory_root
from moe.manifest import Manifest
from placement.moves.cluster import deployed
from placement.moves.coordinator import Coordinator, Options
from placement.moves.managers import NodeSettings, start_nodes
from platform_words.memory import RuntimeMemory
from smoe import lifecycle
from smoe.deployment import DeploymentSettings, function_deployments

HOME, OTHER = "a", "b"
TIMEOUT_S = 600.0
AROUND_S = 5.0
"""Before and after the longest change, what Table 2 of the ElasticMoE paper calls *during* (its appendix A.1)."""
SLOW_SCALES_S = 2.0
"""Between weighings during changes that take a minute or more and are timed too: weighing takes a tenth of a core."""
FRESH_RUNTIME_MIB = 640
"""Memory of a worker that shares no interpreter with others, before it holds weights: with the limit of a forked one
the kernel kills it while it imports, again and again."""
PRIVATE, FORKED, FRESH = "bench/private", "bench/forked", "bench/fresh"
IMAGES = tuple(
    f"{image}=benchmarks.live_scaling.ablations.{image.rpartition('/')[2]}:main" for image in (PRIVATE, FORKED, FRESH)
)


@dataclass(frozen=True)
class Setting:
    """What all rows share."""

    folder: Path
    directory: Path
    manifest: Manifest
    texts: list[str]
    expected: np.ndarray
    """[texts, d] float32."""
    clients: int
    rate: float
    pause_s: float
    link_bytes_per_s: float
    disk_bytes_per_s: float
    start_gap_s: float = 0.01
    """Pause between two replicas that start, and between two that end."""
    load: float = 0.7
    """Requests a second over ``capacity``, of the row at-load."""
    capacity: float = 0.0
    """Answers a second before the full system's scale-ups, once they are known."""
    window_s: float = 0.0
    """Seconds of the longest change, which the full system is looked at for, too; 0: it is not."""


@dataclass(frozen=True)
class Span:
    """One change of the whole pipeline, in seconds of the monotonic clock."""

    name: str
    before_s: float
    """Since when nothing was changing."""
    ordered_s: float
    ready_s: float
    """The last function had what was asked for."""
    settled_s: float
    """The last old worker was gone."""


@dataclass
class Measured:
    """A row's changes, what the clients saw, and what the scales showed in the rounds that were weighed."""

    spans: list[Span] = field(default_factory=list)
    answers: Answers = field(default_factory=lambda: Answers.of(np.empty((0, 3))))
    without_ready: Callable[[Span], float] = lambda span: 0.0
    weights: dict[str, tuple[Span, list[Weight]]] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    """Bytes moved by source in the last move onto the other node."""
    least_s: float = 0.0
    """Seconds from its order on that a change's throughput is looked at for, where the change is shorter."""
    around: tuple[Span, float] | None = None
    """A change that was looked at for longer than it took, and the seconds from its order that were meant."""


@dataclass(frozen=True)
class Running(RunningGateway):
    """A gateway that runs, and its memory."""

    folders: tuple[Path, ...] = ()
    """Memory folders of its machines."""


class Stage:
    """A gateway with two nodes, the pipeline on the first, the load on it, and the changes."""

    def __init__(
        self, setting: Setting, running: Running, image: str, standbys: int, watch: FeedWatch, peers: bool
    ) -> None:
        self._setting = setting
        self.running = running
        state = running.state
        self.names = [str(entry["service"]) for entry in function_deployments(setting.manifest, deployment(image))]
        self._watch = watch
        self._standbys = standbys
        self._gateway = psutil.Process(running.pid)
        self._generation = 0
        self._lead_s = 0.0
        self._coordinator = Coordinator(running.connect, setting.manifest, state, Options(peers, TIMEOUT_S))
        self.copied: dict[str, int] = {}

    def onto_other_node(self) -> Span:
        """Every function from one replica at home to one on each node."""
        return self._move("up", {HOME: 1, OTHER: 1})

    def home_again(self) -> Span:
        return self._move("down", {HOME: 1})

    def up_in_place(self) -> Span:
        return self._move("up in place", {HOME: 2})

    def down_in_place(self) -> Span:
        return self._move("down in place", {HOME: 1})

    def exchange(self) -> Span:
        """Every worker for a new one, by a changed environment."""
        self._generation += 1
        old: dict[str, frozenset[str]] = {}
        client = self.running.connect()
        deployments = deployed(client, self._setting.manifest.name).deployments

        def order() -> None:
            # as late as this: the watch may lag behind the change before, whose outcome is another picture
            old.update({name: self._watch.pictures[-1].ready[name] for name in self.names})
            for deployment in deployments.values():
                environment = {**deployment["envVars"], "smoe_generation": str(self._generation)}
                client.deploy({**deployment, "envVars": environment})

        def exchanged(picture: Picture) -> bool:
            return all(
                len(picture.ready[name]) == len(old[name]) and not picture.ready[name] & old[name]
                for name in self.names
            )

        return self.change("exchange", order, exchanged)

    def cold_restart(self, image: str, replicas: int) -> Span:
        """Everything stopped, then everything started with the configuration that is wanted."""

        def order() -> None:
            client = self.running.connect()
            for name in self.names:
                client.remove(name)
            self._watch.until(lambda picture: not any(picture.alive.get(name) for name in self.names), TIMEOUT_S)
            for one in reversed(function_deployments(self._setting.manifest, deployment(image, replicas))):
                client.deploy(one)

        return self.change(
            "up", order, lambda picture: all(len(picture.ready.get(name, ())) == replicas for name in self.names)
        )

    def weigh(self, name: str, change: Callable[[], Span], measured: Measured) -> None:
        """Make a change with the scales on; it is not timed."""
        with Scales([self.running.pid], self.running.folders) as scales:
            span = change()
            self.wait_standbys()
            time.sleep(1.0)
        measured.weights[name] = (span, scales.weights)

    def time_and_weigh(self, change: Callable[[], Span], measured: Measured) -> Span:
        """Both at once, for changes that take long: the scales hardly slow them."""
        with Scales([self.running.pid], self.running.folders, pause_s=SLOW_SCALES_S) as scales:
            span = change()
            time.sleep(SLOW_SCALES_S)
        measured.spans.append(span)
        measured.weights["up"] = (span, scales.weights)
        return span

    def look_around(self, change: Callable[[], Span], measured: Measured, window_s: float = 0.0) -> Span:
        """Make a change AROUND_S later than else, and go on until AROUND_S after ``window_s`` (0: after it)."""
        self._lead_s = AROUND_S
        span = change()
        self._lead_s = 0.0
        window_s = window_s or span.settled_s - span.ordered_s
        time.sleep(max(0.0, span.ordered_s + window_s + AROUND_S - time.monotonic()))
        measured.around = (span, window_s)
        return span

    def start_fresh_from_now_on(self) -> None:
        """Workers of the image FRESH were forked until now."""
        fresh_flag(self._setting).touch()

    def wait_standbys(self) -> None:
        """Until the pool of prepared workers is full: the pause before a change begins then."""
        end_s = time.monotonic() + 60.0
        while time.monotonic() < end_s:
            count = sum(_name(process) == "smoe-standby" for process in self._gateway.children(recursive=True))
            if count >= self._standbys:
                return
            time.sleep(0.25)

    def change(self, name: str, order: Callable[[], None], done: Callable[[Picture], bool]) -> Span:
        """Wait, order, and watch until it has come about."""
        before_s = self._pause()
        ordered_s = time.monotonic()
        order()
        ready_s = self._watch.until(done, TIMEOUT_S)
        settled_s = self._watch.until(
            lambda picture: all(picture.alive[name] == len(picture.ready[name]) for name in self.names), TIMEOUT_S
        )
        return Span(name, before_s, ordered_s, ready_s, settled_s)

    def _move(self, name: str, places: dict[str, int]) -> Span:
        before_s = self._pause()
        ordered_s = time.monotonic()
        moved = self._coordinator.move(dict.fromkeys(self.names, places))
        if name == "up":
            self.copied = {source: moved.plan.nbytes(source) for source in ("peer", "disk")}
        return Span(name, before_s, ordered_s, ordered_s + moved.ready_s, ordered_s + moved.settled_s)

    def _pause(self) -> float:
        self.wait_standbys()
        before_s = time.monotonic()
        time.sleep(self._setting.pause_s + self._lead_s)
        return before_s


def fresh_flag(setting: Setting) -> Path:
    """The file whose being there makes workers of the image FRESH start from nothing."""
    return setting.folder / "fresh"


def deployment(image: str, replicas: int = 1, environment: Mapping[str, str] | None = None) -> DeploymentSettings:
    """Settings of the whole pipeline; ``image`` empty: the package's own."""
    given = DeploymentSettings(
        min_replicas=replicas,
        ingress_replicas=replicas,
        extra_environment=dict(environment or {}),
        runtime=RuntimeMemory.same(FRESH_RUNTIME_MIB) if image == FRESH else DeploymentSettings.runtime,
    )
    return replace(given, image=f"{image}:1") if image else given


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


@contextmanager
def gateway(setting: Setting, name: str, standbys: int, nodes: tuple[str, ...] = (HOME, OTHER)) -> Iterator[Running]:
    """A gateway with managers on its nodes and all weights at home."""
    state = setting.folder / name
    settings = replace(
        local_gateway(state, machines=nodes, standbys=standbys),
        images=IMAGES,
        pipelines_dir=setting.directory.parent,
        start_gap_s=setting.start_gap_s,
    )
    present = set(memory_root(state).glob(f"{PREFIX}*"))
    with running_gateway(settings) as running:
        if nodes:
            links = NodeSettings(0, setting.link_bytes_per_s, setting.disk_bytes_per_s)
            start_nodes(running.connect(), state, setting.manifest, dict.fromkeys(nodes, links))
        yield Running(settings, tuple(set(memory_root(state).glob(f"{PREFIX}*")) - present))


@contextmanager
def stage(
    setting: Setting, name: str, image: str, standbys: int, *, peers: bool, measured: Measured
) -> Iterator[Stage]:
    """A gateway, the pipeline with one replica of each function, clients on it; fills ``measured`` at the end."""
    with gateway(setting, name, standbys) as running:
        client = running.connect()
        fresh_flag(setting).unlink(missing_ok=True)
        settings = deployment(image, 1, {AFTER: str(fresh_flag(setting))} if image == FRESH else None)
        lifecycle.deploy_pipeline(client, setting.manifest, settings, timeout_s=TIMEOUT_S)
        url = f"{client.url}/function/{setting.manifest.name}"
        load = Load(url, setting.texts, setting.expected, setting.clients, setting.rate)
        with SteadyLoad(load, setting.folder) as clients, FeedWatch(running.connect) as watch:
            here = Stage(setting, running, image, standbys, watch, peers)
            time.sleep(2.0)
            yield here
            measured.copied = here.copied
            measured.without_ready = lambda span: watch.without_ready_s(here.names, span.ordered_s, span.settled_s)
        measured.answers = clients.answers
