"""Stories of moves on a real gateway with two nodes, while a client asks without a pause."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from benchmarks.harness.running import listening
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayRefusedError
from gateway.client.state import read_gateway
from moe.manifest import Manifest, load
from moe.preset import byte_tokenizer
from moe.split import split
from placement.heterogeneous import MIB, expert_bytes
from placement.moves.cluster import Places
from placement.moves.coordinator import Coordinator, Moved, Options
from placement.moves.errors import MoveError
from placement.moves.journal import Entry, Journal
from placement.moves.managers import Managers, NodeSettings, deploy_managers, read_feed_token, start_nodes
from smoe import lifecycle
from smoe.cli import cli
from tests.unit.moe import tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    # what earlier tests left to the garbage collector may be found in the middle of one of these
    pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"),
]
FUNCTION = "tiny-expert-0-0"
COPY_S = 2.0
"""What copying all weights takes to a node whose link is slow."""


@dataclass
class Running:
    state: Path
    client: GatewayClient
    manifest: Manifest
    managers: Managers

    @property
    def weight_bytes(self) -> int:
        return sum(file.bytes for name, file in self.manifest.files.items() if name.startswith("weights/"))

    @property
    def slow(self) -> NodeSettings:
        return NodeSettings(link_bytes_per_s=self.weight_bytes / COPY_S)

    def move(self, target: Places) -> Moved:
        options = Options(True, 60.0)
        connect = lambda: GatewayClient.from_state(self.state)  # noqa: E731
        with Coordinator(connect, self.manifest, self.state, options) as coordinator:
            return coordinator.move(target)

    def functions(self) -> list[str]:
        deployed = self.client.functions()
        return [f["name"] for f in deployed if f["labels"].get("smoe.pipeline") == self.manifest.name]

    def all_at(self, places: dict[str, int]) -> dict[str, dict[str, int]]:
        return dict.fromkeys(self.functions(), places)

    def new_manager(self, node: str, settings: NodeSettings) -> None:
        """In place of the one that is there; the node's memory stays."""
        with suppress(GatewayRefusedError):  # it may be lost
            self.client.remove(f"weights-{node}")
        deploy_managers(self.client, {node: settings})

    def nodes_of(self, function: str) -> list[str]:
        return sorted(one["node"] for one in self.client.replicas()[function])

    @contextmanager
    def asking(self) -> Iterator[list[int]]:
        """Statuses of requests that follow each other for as long as the block lasts."""
        statuses: list[int] = []
        stop = threading.Event()

        def ask() -> None:
            url = f"{self.client.url}/function/{self.manifest.name}"
            with requests.Session() as session:
                session.trust_env = False
                while not stop.is_set() or not statuses:
                    statuses.append(session.post(url, json={"inputs": "a sentence"}, timeout=100).status_code)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(ask)
            try:
                yield statuses
            finally:
                stop.set()
                done.result()

    def lose_manager(self, node: str, pid: int) -> None:
        """Killed, and never started again. ``pid``: found before there is hurry, as that takes a while."""
        self.client.remove(f"weights-{node}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def manager_pid(self, node: str) -> int:
        """Process of the node's weights manager, by the port that the feed names."""
        address = self.client.replicas()[f"weights-{node}"][0]["address"]
        return listening(int(read_gateway(self.state)["pid"]))[int(address.rsplit(":", 1)[1])]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("live-scaling")
    state, pipeline = folder / "state", folder / "state" / "pipelines" / "tiny"
    pipeline.parent.mkdir(parents=True)
    model = tiny.build("bert", vocab_size=300, num_hidden_layers=2, hidden_size=128, intermediate_size=512)
    checkpoint = tiny.store(model, folder / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, pipeline, "tiny", 4, 2)
    settings = lifecycle.GatewaySettings(state, port=0, metrics_port=0, nodes=("a", "b"), standbys=4)
    process = lifecycle.start_gateway(settings, detach=False)
    try:
        manifest = load(pipeline, verify=False)
        client = GatewayClient.from_state(state)
        start_nodes(client, state, manifest, {"a": NodeSettings(), "b": NodeSettings()})
        lifecycle.deploy_pipeline(client, manifest, lifecycle.DeploymentSettings())
        managers = Managers(client, read_feed_token(state))
        yield Running(state, client, manifest, managers)
        managers.close()
        client.close()
    finally:
        lifecycle.stop_process(process)


@pytest.fixture(autouse=True)
def at_home(running: Running) -> Iterator[None]:
    """Every story leaves everything on node a, and node b as fast and as empty as it was."""
    yield
    running.new_manager("b", NodeSettings())
    running.move(running.all_at({"a": 1}))
    assert running.managers.held("b")["held"] == {}


def test_the_whole_pipeline_moves_to_another_node_and_no_request_notices(running: Running) -> None:
    with running.asking() as statuses:
        moved = running.move(running.all_at({"b": 1}))
    assert set(statuses) == {200}
    weights = running.weight_bytes
    assert (moved.plan.nbytes("peer"), moved.plan.nbytes("disk"), moved.released_bytes) == (weights, 0, weights)
    assert {tuple(running.nodes_of(name)) for name in running.functions()} == {("b",)}
    assert running.managers.held("a")["held"] == {}


def during_the_copy(running: Running, act: Callable[[], object]) -> None:
    """Wait until some of the weights are on node b and some are not, then act."""
    some = threading.Event()
    while not some.wait(0.02):
        held = running.managers.held("b")
        if held["unfinished"] and held["held"]:
            act()
            return


def test_a_manager_killed_in_mid_move_is_started_again_and_goes_on(running: Running) -> None:
    running.new_manager("b", running.slow)
    with running.asking() as statuses, ThreadPoolExecutor(1) as pool:
        pid = running.manager_pid("b")
        moving = pool.submit(running.move, running.all_at({"a": 1, "b": 1}))
        during_the_copy(running, lambda: os.kill(pid, signal.SIGKILL))
        moving.result()
    assert set(statuses) == {200}
    assert {tuple(running.nodes_of(name)) for name in running.functions()} == {("a", "b")}
    assert running.managers.held("b")["disk_reads"] == {}


def test_a_node_that_goes_in_mid_move_leaves_everything_as_it_was(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Managers.__init__, "__defaults__", (2.0,))  # nobody starts the lost manager again
    running.new_manager("b", running.slow)
    with running.asking() as statuses, ThreadPoolExecutor(1) as pool:
        pid = running.manager_pid("b")
        moving = pool.submit(running.move, running.all_at({"b": 1}))
        during_the_copy(running, lambda: running.lose_manager("b", pid))
        with pytest.raises(MoveError, match="taken back"):
            moving.result()
    assert set(statuses) == {200}
    assert {tuple(running.nodes_of(name)) for name in running.functions()} == {("a",)}
    assert Journal(running.state).read(running.manifest.name) is None


def test_a_peer_that_goes_in_mid_move_is_replaced_by_the_disk(running: Running) -> None:
    running.new_manager("b", running.slow)
    try:
        with running.asking() as statuses, ThreadPoolExecutor(1) as pool:
            pid = running.manager_pid("a")
            moving = pool.submit(running.move, running.all_at({"a": 1, "b": 1}))
            during_the_copy(running, lambda: running.lose_manager("a", pid))
            moving.result()
        assert set(statuses) == {200}
        assert running.managers.held("b")["disk_reads"]
        assert {tuple(running.nodes_of(name)) for name in running.functions()} == {("a", "b")}
    finally:
        deploy_managers(running.client, {"a": NodeSettings()})


@pytest.mark.parametrize(("how", "nodes"), [("--resume", ["b"]), ("--roll-back", ["a"])])
def test_a_move_that_was_broken_off_is_finished_or_taken_back(running: Running, how: str, nodes: list[str]) -> None:
    """The journal is what a coordinator leaves that was killed between copying and release."""
    name = running.manifest.name
    before = running.all_at({"a": 1})
    Journal(running.state).write(Entry(name, "switching", before, {**before, FUNCTION: {"b": 1}}))
    arguments = ["migrate", name, how, "--state", str(running.state), "--json"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert running.nodes_of(FUNCTION) == nodes
    assert running.nodes_of("tiny-expert-0-1") == ["a"]
    assert Journal(running.state).read(name) is None


def test_a_dry_run_prints_what_would_move_and_moves_nothing(running: Running) -> None:
    arguments = ["migrate", "tiny", "--to", "a=1,b=1", "--only", "*-expert-0-*", "--dry-run", "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--state", str(running.state)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    reported = json.loads(result.output)
    experts = [node for node in running.manifest.nodes if node.kind == "expert" and node.layer == 0]
    assert reported["nodes"]["b"]["peer"] == len(experts)
    assert reported["peer_bytes"] == sum(running.manifest.files[node.weights.file].bytes for node in experts)
    assert reported["predicted_s"] > 0
    assert running.nodes_of(FUNCTION) == ["a"]
    assert running.managers.held("b")["held"] == {}


def test_rebalancing_puts_experts_where_memory_allows_and_no_request_notices(running: Running, tmp_path: Path) -> None:
    """Every ingress tells what was called on its node; all experts start on node a, which has room for half of them."""
    manifest, name = running.manifest, running.manifest.name
    running.move({name: {"a": 1, "b": 1}})
    memory_mb = (2 * manifest.layers * expert_bytes(manifest) + 1) / MIB
    profile = tmp_path / "nodes.json"
    nodes = {"a": {"memory_mb": memory_mb}, "b": {"memory_mb": memory_mb}}
    profile.write_text(json.dumps({"nodes": nodes, "mbit_per_s": 500}))
    arguments = ["rebalance", name, "--nodes", str(profile), "--once", "--json", "--state", str(running.state)]
    with running.asking() as statuses:
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    reported = json.loads(result.output)
    assert (reported["fits"], reported["moved"]) == (False, True)
    assert set(statuses) == {200}
    experts = [manifest.function_name(node.id) for node in manifest.nodes if node.kind == "expert"]
    places = [running.nodes_of(function) for function in experts]
    assert (places.count(["a"]), places.count(["b"])) == (len(experts) // 2, len(experts) // 2)


def test_a_controller_that_scales_in_mid_move_gets_its_replicas_on_the_moves_nodes(running: Running) -> None:
    ordered = threading.Event()
    with running.asking() as statuses, ThreadPoolExecutor(1) as pool:
        moving = pool.submit(running.move, running.all_at({"b": 1}))
        while "b" not in running.nodes_of(FUNCTION) and not moving.done():
            ordered.wait(0.02)
        running.client.scale(FUNCTION, 3)
        moving.result()
    assert set(statuses) == {200}
    assert running.nodes_of(FUNCTION) == ["b", "b", "b"]
