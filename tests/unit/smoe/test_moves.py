"""Moves of one pipeline: one at a time, whoever asks; and the journal that is left when one is broken off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.memory.move_plan import MovePlan
from gateway.client.errors import StateError
from moe.manifest import Manifest, load
from placement.moves import coordinator as module
from placement.moves.coordinator import Coordinator
from placement.moves.errors import MoveError
from placement.moves.journal import Entry, Journal

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
    times = coordinator_of(gateway, manifest, tmp_path)._reached({manifest.name: {"a": 0, "b": 1}})
    if reached:
        assert len(list(times)) == 2
    else:
        with pytest.raises(MoveError, match="did not get their replicas"):
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
