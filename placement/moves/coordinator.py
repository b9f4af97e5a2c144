"""From where a pipeline's replicas are to where they are to be: weights first, then the switchover, then release.

Nothing is taken away before its successor serves: until the gateway has every new replica ready, old replicas keep
their weights and their traffic. A move is journalled; :meth:`Coordinator.resume` finishes one that was broken off, and
one that cannot be finished is taken back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from functions.memory.move_plan import MovePlan, Step, plan_move
from functions.memory.regions import Region, RegionError
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError
from gateway.placement import places_in, spread
from moe.manifest import Manifest
from placement.errors import PlacementError
from placement.moves.cluster import Deployed, Places, deployed, places_now, regions_by_node, regions_of
from placement.moves.errors import ManagerGoneError, MoveError, SourceLostError
from placement.moves.journal import Entry, Journal, Phase
from placement.moves.managers import Managers, read_feed_token
from platform_words.labels import PLACEMENT

log = logging.getLogger(__name__)

WAIT_S = 0.2
LOOK_S = 2.0
"""Between looks at how many replicas functions are to have, while some have not what the move asked for."""


@dataclass(frozen=True)
class Moved:
    """What a move took. Seconds from its beginning."""

    plan: MovePlan
    copied_s: float
    """All weights were there."""
    ready_s: float
    """Every function had its replicas where they were to be."""
    settled_s: float
    """The last old worker was gone."""
    released_bytes: int


@dataclass(frozen=True)
class Options:
    """How moves are made; the benchmark's ablations switch parts off."""

    peers: bool = True
    """Copy from other nodes before reading from disk."""
    switch_timeout_s: float = 120.0


@dataclass(frozen=True)
class Order:
    """What the gateway is to have for a function."""

    annotation: str
    """``smoe.placement``; empty: wherever the gateway starts replicas."""
    replicas: int

    @property
    def by_node(self) -> dict[str, int]:
        """Replicas by node as the gateway spreads them."""
        places = places_in(self.annotation)
        return spread(places, self.replicas) if places else {}

    @property
    def machines(self) -> frozenset[str]:
        """Those that any number of replicas would be spread over."""
        return frozenset(machine for machine, count in places_in(self.annotation).items() if count)


class Coordinator:
    """Moves one pipeline. Not for use from several threads at once. A context manager that closes its connections."""

    def __init__(
        self, connect: Callable[[], GatewayClient], manifest: Manifest, state: Path, options: Options | None = None
    ) -> None:
        """``connect`` makes a client; each thread that copies has one of its own."""
        self._connect = connect
        self._local = threading.local()
        self._manifest = manifest
        self._state = state
        self._options = options or Options()
        self._journal = Journal(state)
        self._token = read_feed_token(state)
        self._opened: list[GatewayClient | Managers] = []

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._opened:
            one.close()

    def plan(self, target: Places) -> MovePlan:
        """What reaching ``target`` would move; functions it does not name stay. Raises MoveError, RegionError."""
        pipeline = deployed(self._client, self._manifest.name)
        return self._plan(pipeline, self._entry(pipeline, target).whole)

    def move(self, target: Places) -> Moved:
        """Reach ``target`` and return when the last old worker is gone. Raises MoveError once it was taken back, and
        where another one was broken off: what was before that is known to its journal alone."""
        name = self._manifest.name
        with self._journal.alone(name):
            if self._journal.read(name) is not None:
                raise MoveError(
                    f"a move of {name} was broken off; first `smoe placement migrate {name} --resume` or `--roll-back` "
                    f"(where neither can be done, remove {self._journal.path(name)})"
                )
            pipeline = deployed(self._client, name)
            return self._carry_out(pipeline, self._entry(pipeline, target))

    def resume(self) -> Moved | None:
        """Finish a move that was broken off; None where there is none. Raises MoveError as :meth:`move` does."""
        return self._take_up(back=False)

    def roll_back(self) -> Moved | None:
        """Take back a move that was broken off; None where there is none. Raises MoveError."""
        return self._take_up(back=True)

    @property
    def broken_off(self) -> Phase | None:
        """How far the move came whose journal is there; None where there is none. Raises StateError."""
        entry = self._journal.read(self._manifest.name)
        return entry.phase if entry is not None else None

    def _take_up(self, *, back: bool) -> Moved | None:
        with self._journal.alone(self._manifest.name):
            entry = self._journal.read(self._manifest.name)
            if entry is None:
                return None
            log.info("a move of %s was broken off while %s; it goes %s", entry.pipeline, entry.phase, _GOES[back])
            pipeline = deployed(self._client, self._manifest.name)
            return self._carry_out(pipeline, self._as_deployed(entry, pipeline), back=back)

    def _carry_out(self, pipeline: Deployed, entry: Entry, *, back: bool = False) -> Moved:
        began_s = time.monotonic()
        plan = self._plan(pipeline, entry.before if back else entry.whole)
        if back:
            entry = _going_back(entry)
        self._journal.write(entry)
        try:
            self._copy(plan, pipeline)
            copied_s = time.monotonic() - began_s
            if not back and entry.phase == "copying":
                entry = replace(entry, phase="switching")
                self._journal.write(entry)
            reached_s = self._reached(self._order(entry, back=back))
            ready_s, settled_s = next(reached_s) - began_s, next(reached_s) - began_s
        except (PlacementError, GatewayClientError, RegionError) as error:
            self._take_back(pipeline, entry, plan, error)
        if not back:
            self._journal.write(replace(entry, phase="releasing"))
        released = self._release(plan.release)
        self._journal.clear(self._manifest.name)
        return Moved(plan, copied_s, ready_s, settled_s, released)

    # weights

    def _plan(self, pipeline: Deployed, target: Places) -> MovePlan:
        managers = self._managers
        sizes = {region.name: region.nbytes for region in self._regions(pipeline).values()}
        managed = managers.nodes()
        if not managed:  # each new replica gets its weights as it starts
            return MovePlan((), {})
        nodes = {}
        for node in managed:
            try:
                memory = managers.memory(node)
            except ManagerGoneError as error:
                log.warning("%s; the plan does without it", error)
                continue
            # Regions of other pipelines are none of this move's business.
            unfinished = {name: there for name, there in memory.unfinished.items() if name in sizes}
            nodes[node] = replace(memory, held=memory.held & sizes.keys(), unfinished=unfinished)
        wanted = regions_by_node(self._manifest, pipeline, target)
        return plan_move(nodes, wanted, sizes, peers=self._options.peers)

    def _copy(self, plan: MovePlan, deployment: Deployed) -> None:
        """Take the plan's steps, each node its own one after the other. The first failure ends the move."""
        regions = self._regions(deployment)
        there = {(step.node, step.region): threading.Event() for step in plan.steps}
        by_node: dict[str, list[Step]] = {}
        for step in plan.steps:
            if step.source == "reuse":
                there[step.node, step.region].set()
            else:
                by_node.setdefault(step.node, []).append(step)
        broken = threading.Event()

        def bring(steps: list[Step]) -> None:
            try:
                while steps:
                    steps = self._bring(steps, regions, there, broken)
            except BaseException:
                broken.set()
                raise

        if len(by_node) < 2:
            for steps in by_node.values():
                bring(steps)
            return
        with ThreadPoolExecutor(len(by_node)) as pool:
            for done in [pool.submit(bring, steps) for steps in by_node.values()]:
                done.result()

    def _bring(
        self,
        steps: list[Step],
        regions: Mapping[str, Region],
        there: Mapping[tuple[str, str], threading.Event],
        broken: threading.Event,
    ) -> list[Step]:
        """Take the first steps of a node, as many as need not wait for another node; returns the rest.

        A peer that is lost is replaced by the disk; a manager that starts again goes on where it stopped.
        """
        first = _before(steps[0], there)
        while first is not None and not first.wait(WAIT_S):
            if broken.is_set():
                raise MoveError(f"{steps[0].region} was to come from node {steps[0].peer}, which did not get it")
        count = 1
        while count < len(steps) and ((before := _before(steps[count], there)) is None or before.is_set()):
            count += 1
        node, taken = steps[0].node, steps[:count]
        try:
            self._managers.hold(node, [(regions[step.region], step.peer or None) for step in taken])
        except SourceLostError as error:
            if not any(step.peer for step in taken):
                raise
            log.warning("%s; what is left is read from disk instead", error)
            self._managers.hold(node, [(regions[step.region], None) for step in taken])
        for step in taken:
            there[node, step.region].set()
        return steps[count:]

    def _release(self, release: Mapping[str, Iterable[str]]) -> int:
        """Give back what is no longer wanted; a node that is gone has given everything back already.

        What functions need where they are ordered now stays: a controller may have scaled them since the plan was made.
        """
        now = deployed(self._client, self._manifest.name)
        needed = regions_by_node(self._manifest, now, self._places(now))
        freed = 0
        for node, names in release.items():
            unneeded = [name for name in names if name not in needed.get(node, ())]
            if not unneeded:
                continue
            try:
                freed += self._managers.release(node, unneeded)
            except ManagerGoneError as error:
                log.warning("%s: nothing to be released there", error)
            except MoveError as error:
                log.warning("%s: what is left there goes with the next move", error)
        return freed

    # replicas

    def _order(self, entry: Entry, *, back: bool = False) -> dict[str, Order]:
        """Order the change from the gateway in one request; returns what is to be reached, by function.

        Functions that the move does not name are left alone, as are those whose order the gateway has already. With
        ``back`` all that the move names are ordered: replicas that still wait to be exchanged show nothing of the
        move's order, and the gateway may be carrying it out yet.
        """
        if back and entry.phase == "copying":  # nothing was ordered
            return {}
        pipeline = deployed(self._client, self._manifest.name)
        now = self._places(pipeline)
        orders = {name: _order_of(name, entry, pipeline, back=back) for name in entry.target if name in now}
        sent: dict[str, dict[str, Any]] = {}
        for name, order in orders.items():
            if back or order.by_node != now[name]:
                sent[name] = {"replicas": order.replicas, "annotations": {PLACEMENT: order.annotation}}
        if sent:
            self._client.scale_all(sent)
        return {name: order for name, order in orders.items() if order.annotation}

    def _reached(self, orders: Mapping[str, Order]) -> Iterator[float]:
        """Monotonic times: all replicas are ready where desired; and no others are left. Raises MoveError.

        Where a controller has changed a function's number of replicas since, that many count, on the same nodes.
        """
        looked_s = time.monotonic()
        end_s = looked_s + self._options.switch_timeout_s
        desired = {name: order.by_node for name, order in orders.items()}
        settled, late = False, list(desired)

        def reached(name: str, feed: Mapping[str, list[dict[str, Any]]]) -> bool:
            return _is_reached(feed.get(name, []), desired[name], orders[name].machines if settled else None)

        with closing(self._client.follow_replicas()) as feed:
            for replicas in feed:
                now_s = time.monotonic()
                if late and now_s - looked_s >= LOOK_S:
                    desired |= self._resized(late, orders)
                    looked_s = now_s
                late = [name for name in desired if not reached(name, replicas)]
                if not late and not settled:
                    yield time.monotonic()
                    settled = True
                    late = [name for name in desired if not reached(name, replicas)]
                if not late:
                    yield time.monotonic()
                    return
                if time.monotonic() > end_s:
                    raise MoveError(
                        f"{len(late)} functions did not get their replicas within {self._options.switch_timeout_s:.0f} "
                        f"s: {', '.join(sorted(late)[:5])}"
                    )
        raise MoveError(
            f"the gateway ended its feed while {len(late)} functions did not have their replicas: "
            f"{', '.join(sorted(late)[:5])}"
        )

    def _resized(self, names: Iterable[str], orders: Mapping[str, Order]) -> dict[str, dict[str, int]]:
        """Replicas by node as the gateway spreads the number that it has for each function now."""
        now = deployed(self._client, self._manifest.name).replicas
        return {name: replace(orders[name], replicas=now[name]).by_node for name in names if name in now}

    def _take_back(self, pipeline: Deployed, entry: Entry, plan: MovePlan, error: Exception) -> NoReturn:
        """Order things as they were, release what was brought for nothing, and say why. Always raises MoveError."""
        log.warning("the move is taken back: %s", error)
        entry = _going_back(entry)
        self._journal.write(entry)
        brought: dict[str, list[str]] = {}
        for step in plan.steps:
            if step.source != "reuse":
                brought.setdefault(step.node, []).append(step.region)
        needed = regions_by_node(self._manifest, pipeline, entry.before)
        try:
            for _ in self._reached(self._order(entry, back=True)):
                pass
            self._release({at: [n for n in names if n not in needed.get(at, ())] for at, names in brought.items()})
        except (PlacementError, GatewayClientError) as failure:
            raise MoveError(
                f"the move failed ({error}) and is not taken back ({failure}); "
                f"`smoe placement migrate {entry.pipeline} --roll-back` tries that again"
            ) from error
        self._journal.clear(self._manifest.name)
        raise MoveError(f"the move was taken back: {error}") from error

    # what there is

    @property
    def _client(self) -> GatewayClient:
        if not hasattr(self._local, "client"):
            self._local.client = self._connect()
            self._opened.append(self._local.client)
        client: GatewayClient = self._local.client
        return client

    @property
    def _managers(self) -> Managers:
        if not hasattr(self._local, "managers"):
            self._local.managers = Managers(self._client, self._token)
            self._opened.append(self._local.managers)
        managers: Managers = self._local.managers
        return managers

    def _regions(self, pipeline: Deployed) -> dict[str, Region]:
        return {
            region.name: region
            for deployment in pipeline.deployments.values()
            for region in regions_of(self._manifest, deployment)
        }

    def _places(self, pipeline: Deployed) -> dict[str, dict[str, int]]:
        """Replicas by node as the gateway has them ordered; for functions without an annotation in the proportions in
        which they run, and where none runs on node "", wherever the gateway starts them."""
        live = places_now(self._client, pipeline.deployments)
        return {
            name: spread(places_in(pipeline.annotation(name)) or live[name] or {"": 1}, replicas)
            for name, replicas in pipeline.replicas.items()
        }

    def _entry(self, pipeline: Deployed, target: Places) -> Entry:
        """A move that begins. Raises MoveError for functions that the pipeline does not have."""
        before, name = self._places(pipeline), self._manifest.name
        unknown = sorted(set(target) - set(before))
        if unknown:
            raise MoveError(f"{unknown[0]} is no function of pipeline {name}")
        named = {one: {node: count for node, count in places.items() if count} for one, places in target.items()}
        return Entry(name, "copying", before, named, {one: pipeline.annotation(one) for one in named})

    def _as_deployed(self, entry: Entry, pipeline: Deployed) -> Entry:
        """The entry for the functions that there are: the pipeline may have been deployed with others since."""
        now = self._places(pipeline)
        gone, new = sorted((entry.before.keys() | entry.target.keys()) - now.keys()), sorted(now.keys() - entry.before)
        if gone or new:
            log.warning(
                "%s was deployed again since the move was broken off: %d of its functions are gone%s, %d are new%s; "
                "new ones stay where they are",
                *(entry.pipeline, len(gone), _some(gone), len(new), _some(new)),
            )
        before = {name: entry.before.get(name, places) for name, places in now.items()}
        return replace(entry, before=before, target={name: at for name, at in entry.target.items() if name in now})


_GOES = {False: "on", True: "back"}


def _going_back(entry: Entry) -> Entry:
    """As it is journalled: whoever finds a move that was to go back does not take it for one that succeeded."""
    return replace(entry, phase="switching") if entry.phase == "releasing" else entry


def _some(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""


def _order_of(name: str, entry: Entry, pipeline: Deployed, *, back: bool) -> Order:
    """A function's order: where a controller has changed its number of replicas since the move began, that many."""
    places = entry.before[name] if back else entry.target[name]
    before, target = sum(entry.before[name].values()), sum(entry.target[name].values())
    present, most = pipeline.replicas[name], pipeline.most(name)
    by_move = {before, target if most is None else min(target, most)}
    replicas = sum(places.values()) if present in by_move else present
    ordered = entry.annotations.get(name, "") if back else pipeline.annotation(name)
    if ordered and (back or _in_proportion(ordered, places)):
        return Order(ordered, replicas)
    by_node = spread(places, replicas) if replicas and places else places
    return Order(",".join(f"{node}={count}" for node, count in sorted(by_node.items()) if node and count), replicas)


def _before(step: Step, there: Mapping[tuple[str, str], threading.Event]) -> threading.Event | None:
    """What a step waits for: the region on the node it is copied from, where that has to get it first."""
    return there.get((step.peer, step.region))


def _in_proportion(annotation: str, desired: Mapping[str, int]) -> bool:
    """Whether scaling alone reaches what is desired: the same nodes in the same proportions are ordered already."""
    ordered = places_in(annotation)
    total, wanted = sum(ordered.values()), sum(desired.values())
    return ordered.keys() == desired.keys() and all(
        ordered[node] * wanted == count * total for node, count in desired.items()
    )


def _is_reached(replicas: list[dict[str, Any]], desired: Mapping[str, int], settled_on: frozenset[str] | None) -> bool:
    """Whether so many are there on each machine; with ``settled_on``, whether no others are left.

    Standbys are there, as nothing but an activation keeps them from serving. How many a function with standbys has is
    the gateway's to see to: it is settled when none starts, drains, or stands elsewhere than ``settled_on``.
    """
    there = Counter(one["node"] for one in replicas if one["state"] in ("ready", "standby"))
    if any(there[machine] < count for machine, count in desired.items()):
        return False
    if settled_on is None:
        return True
    if there.total() < len(replicas):
        return False
    if any(one["state"] == "standby" for one in replicas):
        return there.keys() <= settled_on
    return there.total() == sum(desired.values())
