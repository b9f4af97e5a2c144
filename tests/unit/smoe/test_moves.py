"""Moves of one pipeline: one at a time, whoever asks; and the journal that is left when one is broken off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from functions.memory.move_plan import MovePlan, NodeMemory
from functions.memory.regions import RegionError
from gateway.client.errors import GatewayClientError, GatewayUnreachableError, StateError
from gateway.placement import places_in, spread
from moe.manifest import Manifest, load
from placement.moves import coordinator as module
from placement.moves.coordinator import Coordinator, Order
from placement.moves.errors import MoveError
from placement.moves.journal import Entry, Journal, Phase
from platform_words.labels import PLACEMENT, SCALE_MAX

HOLDER = """
import sys
from pathlib import Path
from placement.moves.journal import Journal
with Journal(Path(sys.argv[1])).alone("m"):
    print("held", flush=True)
    sys.stdin.read()
"""


class OneFunction:
    """A gateway with one function, which has ``replicas``, and a feed that ends; whatever else is asked ends the
    test. The feed is given as nodes by state."""

    url = "played"

    def __init__(self, pipeline: str, replicas: int = 1, *feed: dict[str, str]) -> None:
        self._pipeline = pipeline
        self._replicas = replicas
        self._feed = feed

    def functions(self) -> list[dict[str, Any]]:
        labels, environment = {"smoe.pipeline": self._pipeline}, {"smoe_nodes": "ingress"}
        return [{"name": self._pipeline, "replicas": self._replicas, "labels": labels, "envVars": environment}]

    def replicas(self) -> dict[str, list[dict[str, str]]]:
        return next(self.follow_replicas(), {})

    def follow_replicas(self) -> Iterator[dict[str, list[dict[str, str]]]]:
        for states in self._feed:
            yield {self._pipeline: [{"state": s, "node": node} for s, nodes in states.items() for node in nodes]}


def coordinator_of(gateway: Any, manifest: Manifest, state: Path) -> Coordinator:
    (state / "secrets").mkdir()
    (state / "secrets" / "feed-token").write_text("token")
    return Coordinator(lambda: gateway, manifest, state)


def test_a_process_that_is_killed_lets_the_next_move_begin(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    given = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(MoveError, match="another move of m is under way"), journal.alone("m"):
            pass
        with journal.alone("n"):
            pass
        other.kill()
        other.wait(10)
        with journal.alone("m"):
            pass


def test_a_broken_off_move_is_not_taken_up_while_its_coordinator_lives(tmp_path: Path, minilm_pipeline: Path) -> None:
    manifest = load(minilm_pipeline, verify=False)
    journal = Journal(tmp_path)
    entry = Entry(manifest.name, "copying", {manifest.name: {"a": 1}}, {manifest.name: {"b": 1}})
    journal.write(entry)
    coordinator = coordinator_of(OneFunction(manifest.name), manifest, tmp_path)
    with journal.alone(manifest.name):
        for take_up in (coordinator.resume, coordinator.roll_back):
            with pytest.raises(MoveError, match="under way"):
                take_up()
    assert journal.read(manifest.name) == entry


STARTING = {"ready": "a", "starting": "b"}


@pytest.mark.parametrize(
    ("replicas", "last", "reached"),
    [
        pytest.param(1, {"ready": "b"}, True, id="as-ordered"),
        pytest.param(3, {"ready": "bbb"}, True, id="more-by-a-controller"),
        pytest.param(3, {"ready": "bb", "starting": "b"}, False, id="not-all-of-them-yet"),
        pytest.param(3, {"ready": "bbb", "draining": "a"}, False, id="an-old-one-is-left"),
        pytest.param(1, {"ready": "bb"}, False, id="one-too-many"),
        pytest.param(3, {"ready": "abb"}, False, id="on-another-node"),
        pytest.param(1, {"ready": "b", "standby": "bbb"}, True, id="with-its-standbys"),
        pytest.param(2, {"standby": "bb"}, True, id="all-of-them-asleep"),
        pytest.param(1, {"ready": "b", "standby": "ba"}, False, id="a-standby-is-left"),
        pytest.param(
            1, {"ready": "b", "standby": "b", "draining": "a"}, False, id="an-old-one-is-left-beside-standbys"
        ),
    ],
)
def test_a_move_ends_with_as_many_replicas_as_a_controller_wants_meanwhile(
    tmp_path: Path,
    minilm_pipeline: Path,
    monkeypatch: pytest.MonkeyPatch,
    replicas: int,
    last: dict[str, str],
    reached: bool,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    manifest = load(minilm_pipeline, verify=False)
    gateway = OneFunction(manifest.name, replicas, STARTING, last)
    times = coordinator_of(gateway, manifest, tmp_path)._reached({manifest.name: Order("a=0,b=1", 1)})
    if reached:
        assert len(list(times)) == 2
    else:
        with pytest.raises(MoveError, match="1 functions did not have their replicas"):
            list(times)


def test_where_nodes_have_no_manager_only_replicas_move(tmp_path: Path, minilm_pipeline: Path) -> None:
    """As on Kubernetes, whose pods get their weights as they start."""
    manifest = load(minilm_pipeline, verify=False)
    coordinator = coordinator_of(OneFunction(manifest.name, 1, {"ready": "a"}), manifest, tmp_path)
    assert coordinator.plan({manifest.name: {"b": 1}}) == MovePlan((), {})


def test_without_nodes_a_move_says_how_to_have_some(tmp_path: Path, minilm_pipeline: Path) -> None:
    manifest = load(minilm_pipeline, verify=False)
    coordinator = coordinator_of(OneFunction(manifest.name), manifest, tmp_path)
    with pytest.raises(MoveError, match="smoe up --node a --node b"):
        coordinator.plan({manifest.name: {"b": 1}})


@pytest.mark.parametrize("text", ["{", "[]", '{"pipeline": "m"}', '{"pipeline": "m", "phase": "x", "before": 1}'])
def test_a_file_that_is_no_journal_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "moves").mkdir()
    (tmp_path / "moves" / "m.json").write_text(text)
    with pytest.raises(StateError, match=r"m\.json is not a journal"):
        Journal(tmp_path).read("m")


class Gateway:
    """Functions with an annotation and a number of replicas that orders change, on nodes a and b; a function starts
    on a. Replicas follow orders at once, but those of functions that are ``stuck``, which keep their ``live`` ones."""

    url = "played"

    def __init__(self, pipeline: str, **annotations: str) -> None:
        self.pipeline = pipeline
        self.annotations = annotations
        self.counts = {name: sum(places_in(text).values()) or 1 for name, text in annotations.items()}
        self.labels: dict[str, str] = {}
        self.nodes = dict.fromkeys(annotations, "ingress")
        self.stuck: dict[str, str] = {}
        self.orders: list[dict[str, Any]] = []
        self.end: GatewayClientError | None = None

    def functions(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "replicas": self.counts[name],
                "labels": {"smoe.pipeline": self.pipeline, **self.labels},
                "envVars": {"smoe_nodes": self.nodes[name]},
                "annotations": {PLACEMENT: text} if text else {},
            }
            for name, text in self.annotations.items()
        ]

    def replicas(self) -> dict[str, list[dict[str, str]]]:
        return {name: [{"state": "ready", "node": node} for node in self._live(name)] for name in self.counts}

    def _live(self, name: str) -> str:
        places = spread(places_in(self.annotations[name]) or {"a": 1}, self.counts[name])
        return self.stuck.get(name, "".join(node * count for node, count in places.items()))

    def scale_all(self, orders: dict[str, dict[str, Any]]) -> None:
        self.orders.append(orders)
        for name, order in orders.items():
            self.counts[name] = min(order["replicas"], int(self.labels.get(SCALE_MAX, 99)))
            self.annotations[name] = order.get("annotations", {}).get(PLACEMENT, self.annotations[name])

    def follow_replicas(self) -> Iterator[dict[str, list[dict[str, str]]]]:
        """A feed that breaks, or that is ended after what there is now."""
        if self.end is not None:
            raise self.end
        yield self.replicas()


class Memory:
    """Weights managers of nodes by what they hold; what is released is noted. A release at the node ``refuses`` ends
    with an error."""

    def __init__(self, **held: set[str]) -> None:
        self._held = held
        self.refuses: dict[str, BaseException] = {}
        self.released: dict[str, list[str]] = {}

    def nodes(self) -> list[str]:
        return sorted(self._held)

    def memory(self, node: str) -> NodeMemory:
        return NodeMemory(frozenset(self._held[node]), 1e9, 1e9)

    def hold(self, node: str, wanted: Any) -> None:
        self._held[node] |= {region.name for region, _ in wanted}

    def release(self, node: str, names: list[str]) -> int:
        if node in self.refuses:
            raise self.refuses[node]
        self.released[node] = names
        return len(names)

    def close(self) -> None:
        pass


def order(replicas: int, annotation: str) -> dict[str, Any]:
    return {"replicas": replicas, "annotations": {PLACEMENT: annotation}}


@pytest.fixture
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


@pytest.mark.parametrize(
    ("annotation", "live", "restored"),
    [
        pytest.param("", "a", "a=1", id="it-waits-for-its-turn"),
        pytest.param("a=1", "a", "a=1", id="it-waits-where-it-was-ordered"),
        pytest.param("b=1,a=2", "aab", "b=1,a=2", id="in-the-order-of-its-annotation"),
        pytest.param("", "", "", id="in-crash-backoff"),
        pytest.param("b=1", "", "b=1", id="in-crash-backoff-where-it-was-ordered"),
    ],
)
def test_a_function_whose_replicas_show_nothing_of_the_move_is_taken_back(
    tmp_path: Path, manifest: Manifest, annotation: str, live: str, restored: str
) -> None:
    gateway = Gateway(manifest.name, f=annotation, g="")
    gateway.stuck["f"] = live
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    if live:
        taken_back = "the move was taken back: the gateway ended its feed"
    else:  # it is not ready where it was either
        taken_back = "taken back" if not annotation else "not taken back .* --roll-back"
    with pytest.raises(MoveError, match=taken_back):
        coordinator.move({"f": {"c": 2}})
    assert gateway.orders == [{"f": order(2, "c=2")}, {"f": order(max(len(live), 1), restored)}]


def test_a_roll_back_orders_functions_that_still_run_where_they_were(tmp_path: Path, manifest: Manifest) -> None:
    gateway = Gateway(manifest.name, f="b=1", g="b=1")
    gateway.stuck["f"] = "a"
    Journal(tmp_path).write(Entry(manifest.name, "switching", {"f": {"a": 1}, "g": {"b": 1}}, {"f": {"b": 1}}))
    coordinator_of(gateway, manifest, tmp_path).roll_back()
    assert gateway.orders == [{"f": order(1, "a=1")}]
    assert Journal(tmp_path).read(manifest.name) is None


def test_a_move_that_ordered_nothing_yet_is_taken_back_without_an_order(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RegionError("no room")

    gateway = Gateway(manifest.name, f="")
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    monkeypatch.setattr(coordinator, "_copy", fail)
    with pytest.raises(MoveError, match="taken back: no room"):
        coordinator.move({"f": {"b": 1}})
    assert gateway.orders == []
    assert Journal(tmp_path).read(manifest.name) is None


def test_what_a_controller_scales_while_weights_are_copied_stays(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``g`` is none of the move's business, and ``f`` moves with as many replicas as the controller gave it."""
    gateway = Gateway(manifest.name, f="", g="")
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    monkeypatch.setattr(coordinator, "_copy", lambda *_: gateway.counts.update(f=3, g=4))
    coordinator.move({"f": {"b": 1}})
    assert gateway.orders == [{"f": order(3, "b=3")}]


def test_a_take_back_keeps_a_controllers_replicas_and_not_the_moves(tmp_path: Path, manifest: Manifest) -> None:
    before = {"f": {"a": 1}, "g": {"a": 1}, "h": {"a": 1}}
    Journal(tmp_path).write(Entry(manifest.name, "switching", before, {"f": {"b": 9}, "g": {"b": 2}, "h": {"b": 0}}))
    gateway = Gateway(manifest.name, f="b=9", g="b=2", h="b=1")
    gateway.counts |= {"f": 4, "g": 3, "h": 0}
    gateway.labels[SCALE_MAX] = "4"
    coordinator_of(gateway, manifest, tmp_path).roll_back()
    assert gateway.orders == [{"f": order(1, "a=1"), "g": order(3, "a=3"), "h": order(1, "a=1")}]


def test_a_function_that_was_scaled_to_zero_meanwhile_is_to_start_where_the_move_has_it(
    tmp_path: Path, manifest: Manifest
) -> None:
    gateway = Gateway(manifest.name, f="a=1", g="")
    gateway.counts["f"] = 0
    before = {"f": {"a": 1}, "g": {"a": 1}}
    Journal(tmp_path).write(Entry(manifest.name, "switching", before, {"f": {"b": 1}}))
    coordinator_of(gateway, manifest, tmp_path).resume()
    assert gateway.orders == [{"f": order(0, "b=1")}]


@pytest.mark.parametrize(("annotation", "sent"), [("b=2,a=2", []), ("", []), ("a=1", [{"f": order(2, "a=1,b=1")}])])
def test_functions_that_are_ordered_as_desired_already_are_left_alone(
    tmp_path: Path, manifest: Manifest, annotation: str, sent: list[Any]
) -> None:
    gateway = Gateway(manifest.name, f=annotation)
    gateway.counts["f"] = 2
    if not annotation:
        gateway.stuck["f"] = "ab"
    coordinator_of(gateway, manifest, tmp_path)._order(
        Entry(manifest.name, "switching", {"f": {"a": 2}}, {"f": {"a": 1, "b": 1}})
    )
    assert gateway.orders == sent


def test_a_gateway_that_goes_away_within_its_feed_leaves_a_move_that_can_be_rolled_back(
    tmp_path: Path, manifest: Manifest
) -> None:
    gateway = Gateway(manifest.name, f="")
    gateway.end = GatewayUnreachableError("gone")
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    with pytest.raises(MoveError, match=r"failed \(gone\) and is not taken back \(gone\).* --roll-back"):
        coordinator.move({"f": {"b": 1}})
    gateway.end = None
    assert coordinator.roll_back() is not None
    assert gateway.annotations == {"f": "a=1"}


def test_a_move_that_was_broken_off_is_not_replaced_by_the_next(tmp_path: Path, manifest: Manifest) -> None:
    entry = Entry(manifest.name, "switching", {"f": {"a": 1}}, {"f": {"b": 1}})
    Journal(tmp_path).write(entry)
    gateway = Gateway(manifest.name, f="b=1")
    with pytest.raises(MoveError, match=r"was broken off; first .* --resume` or `--roll-back`"):
        coordinator_of(gateway, manifest, tmp_path).move({"f": {"a": 1, "b": 1}})
    assert (gateway.orders, Journal(tmp_path).read(manifest.name)) == ([], entry)


@pytest.mark.parametrize(("back", "annotation"), [(False, "b=1"), (True, "a=1")])
def test_a_move_of_functions_that_are_others_now_is_taken_up(
    tmp_path: Path, manifest: Manifest, caplog: pytest.LogCaptureFixture, back: bool, annotation: str
) -> None:
    """Weights of functions that came since stay where these run."""
    segment, expert = manifest.nodes[0], manifest.experts(0)[0]
    regions = {one: f"{manifest.name}/{one.weights.file}" for one in (segment, expert)}
    gateway = Gateway(manifest.name, f="a=1" if not back else "b=1", new="b=1")
    gateway.nodes |= {"f": segment.id, "new": expert.id}
    before: Any = {"f": {"a": 1}, "gone": {"a": 1}}
    Journal(tmp_path).write(Entry(manifest.name, "switching", before, {"f": {"b": 1}, "gone": {"b": 1}}))
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    memory = coordinator._local.managers = Memory(a=set(regions.values()), b=set(regions.values()))
    assert (coordinator.roll_back() if back else coordinator.resume()) is not None
    assert gateway.annotations == {"f": annotation, "new": "b=1"}
    assert memory.released["a"] == sorted(regions.values() if not back else [regions[expert]])
    assert memory.released.get("b") == ([regions[segment]] if back else None)
    assert "1 of its functions are gone (gone), 1 are new (new)" in caplog.text


@dataclass
class Pair:
    """``f`` with a segment on node a, ``g`` with an expert ordered for a and b of which a has it; both nodes hold the
    expert."""

    gateway: Gateway
    memory: Memory
    coordinator: Coordinator
    segment: str
    expert: str


@pytest.fixture
def pair(tmp_path: Path, manifest: Manifest) -> Pair:
    segment, expert = manifest.nodes[0], manifest.experts(0)[0]
    regions = [f"{manifest.name}/{one.weights.file}" for one in (segment, expert)]
    gateway = Gateway(manifest.name, f="a=1", g="a=1,b=1")
    gateway.counts["g"] = 1
    gateway.nodes |= {"f": segment.id, "g": expert.id}
    coordinator = coordinator_of(gateway, manifest, tmp_path)
    memory = coordinator._local.managers = Memory(a=set(regions), b={regions[1]})
    return Pair(gateway, memory, coordinator, *regions)


def test_weights_that_a_controllers_replicas_need_meanwhile_are_not_released(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``g`` runs on b, too, once it has two replicas."""
    monkeypatch.setattr(pair.coordinator, "_copy", lambda *_: pair.gateway.counts.update(g=2))
    pair.coordinator.move({"f": {"b": 1}})
    assert pair.memory.released == {"a": [pair.segment]}


@pytest.mark.parametrize(("replicas", "released"), [(1, ["b"]), (2, [])])
def test_a_take_back_does_not_release_what_a_controllers_replicas_need_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, replicas: int, released: list[str]
) -> None:
    def fail(*_: object) -> None:
        pair.gateway.counts["f"] = replicas
        raise RegionError("no room")

    pair.gateway.annotations["f"] = "a=1,b=1"
    monkeypatch.setattr(pair.coordinator, "_copy", fail)
    with pytest.raises(MoveError, match="taken back: no room"):
        pair.coordinator.move({"f": {"b": 1}})
    assert pair.memory.released == {node: [pair.segment] for node in released}


def test_a_manager_that_refuses_a_release_does_not_keep_the_move_from_its_end(
    tmp_path: Path, manifest: Manifest, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.memory.refuses["a"] = MoveError("is coming at this moment")
    pair.coordinator.move({"f": {"b": 1}})
    assert "is coming at this moment: what is left there goes with the next move" in caplog.text
    assert pair.memory.released == {"b": [pair.expert]}
    assert Journal(tmp_path).read(manifest.name) is None


@pytest.mark.parametrize(
    ("back", "node", "phase"), [(False, "a", "releasing"), (True, "b", "switching")], ids=["on", "back"]
)
def test_a_journal_says_which_way_a_move_went_that_was_killed_in_its_release(
    tmp_path: Path, manifest: Manifest, pair: Pair, back: bool, node: str, phase: Phase
) -> None:
    """``rebalance`` finishes a move that is "releasing"."""
    before = {"f": {"a": 1}, "g": {"a": 1}}
    Journal(tmp_path).write(Entry(manifest.name, "releasing", before, {"f": {"b": 1}}))
    pair.memory.refuses[node] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pair.coordinator.roll_back() if back else pair.coordinator.resume()
    assert pair.coordinator.broken_off == phase


@pytest.mark.parametrize("where", ["copying", "ordering back"])
def test_a_move_that_was_releasing_and_cannot_be_resumed_is_journalled_as_going_back(
    tmp_path: Path, manifest: Manifest, pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> None:
        raise RegionError("no room")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    before = {"f": {"a": 1}, "g": {"a": 1}}
    Journal(tmp_path).write(Entry(manifest.name, "releasing", before, {"f": {"b": 1}}))
    monkeypatch.setattr(pair.coordinator, "_copy", killed if where == "copying" else fail)
    monkeypatch.setattr(pair.gateway, "scale_all", killed)
    with pytest.raises(KeyboardInterrupt):
        pair.coordinator.resume()
    assert pair.coordinator.broken_off == ("releasing" if where == "copying" else "switching")
