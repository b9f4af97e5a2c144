"""The weights managers of a gateway's nodes: deploying them, finding them, talking to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import requests

from functions.memory.move_plan import NodeMemory
from functions.memory.regions import Region
from gateway.client.client import GatewayClient
from gateway.client.errors import StateError
from moe.manifest import Manifest
from placement.moves.errors import ManagerGoneError, MoveError, SourceLostError
from platform_words.labels import BACKGROUND, GPU_MEMORY, MEMORY_LABEL, PLACEMENT, SCALE_MAX, SCALE_MIN

IMAGE = f"smoe/memory:{version('smoe')}"
CALL_TIMEOUT_S = 15.0
HOLD_TIMEOUT_S = 600.0
START_TIMEOUT_S = 60.0
RETRY_S = 0.1
UNMEASURED_BYTES_PER_S = 1e9
"""Taken for a line that has no limit and has carried nothing yet."""


@dataclass(frozen=True)
class NodeSettings:
    """What an emulated node is started with; 0 is no limit."""

    memory_bytes: int = 0
    link_bytes_per_s: float = 0.0
    disk_bytes_per_s: float = 0.0
    lends_on_gpus: bool = False
    """Workers with a GPU share map regions there that the node's manager copied, in place of copying their own."""
    device_memory_bytes: int = 0
    """Memory of each GPU for that."""


def function_name(node: str) -> str:
    return f"weights-{node}"


def deploy_managers(client: GatewayClient, nodes: Mapping[str, NodeSettings]) -> None:
    """A weights manager on every node; returns when all answer."""
    for node, settings in nodes.items():
        environment = {
            "smoe_memory_bytes": str(settings.memory_bytes),
            "smoe_link_bytes_per_s": f"{settings.link_bytes_per_s:g}",
            "smoe_disk_bytes_per_s": f"{settings.disk_bytes_per_s:g}",
        }
        annotations = {PLACEMENT: f"{node}=1", BACKGROUND: "true"}
        if settings.lends_on_gpus:
            environment["smoe_device_memory_bytes"] = str(settings.device_memory_bytes)
            annotations[GPU_MEMORY] = "true"
        client.deploy(
            {
                "service": function_name(node),
                "image": IMAGE,
                "envVars": environment,
                "labels": {MEMORY_LABEL: node, SCALE_MIN: "1", SCALE_MAX: "1"},
                "annotations": annotations,
            }
        )
    client.wait_ready([function_name(node) for node in nodes], START_TIMEOUT_S)


def load(managers: Managers, manifest: Manifest, node: str) -> None:
    """Every region of a pipeline on one node, from disk: what a pipeline starts from. Raises MoveError."""
    files = dict.fromkeys(one.weights.file for one in manifest.nodes)
    regions = [
        Region(f"{manifest.name}/{file}", manifest.files[file].bytes, manifest.files[file].sha256) for file in files
    ]
    managers.hold(node, [(region, None) for region in regions])


def start_nodes(client: GatewayClient, state: Path, manifest: Manifest, nodes: Mapping[str, NodeSettings]) -> None:
    """Managers on all nodes, and the pipeline's weights in the memory of the first, where functions start."""
    deploy_managers(client, nodes)
    load(Managers(client, read_feed_token(state)), manifest, next(iter(nodes)))


def read_feed_token(state: Path) -> str:
    """The token that managers take; raises StateError."""
    path = state / "secrets" / "feed-token"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise StateError(f"{path} is missing: moves are made on the gateway's machine, on its state folder") from None


class Managers:
    """Managers by node. Addresses change when managers start again: one that is not reached is looked up again."""

    def __init__(self, client: GatewayClient, token: str, patience_s: float = 10.0) -> None:
        """``patience_s``: how long a manager that does not answer is waited for; the gateway starts it again."""
        self._client = client
        self._token = token
        self._patience_s = patience_s
        self._session = requests.Session()
        self._session.trust_env = False
        self._addresses: dict[str, str] = {}

    def close(self) -> None:
        """Close connections to managers that are kept open."""
        self._session.close()

    def nodes(self) -> list[str]:
        """Nodes that have a manager; none where replicas have nodes whose weights are not managed (a cluster's). Raises
        MoveError where replicas have no nodes."""
        nodes = [f["labels"][MEMORY_LABEL] for f in self._client.functions() if MEMORY_LABEL in f.get("labels", {})]
        if not nodes and not any("node" in one for replicas in self._client.replicas().values() for one in replicas):
            raise MoveError("no weights manager is deployed; start the gateway with nodes (smoe up --node a --node b)")
        return nodes

    def held(self, node: str) -> dict[str, Any]:
        """The node's own account (``functions.memory.manager``). Raises ManagerGoneError."""
        return self._call(node, "/held", {}, CALL_TIMEOUT_S)

    def memory(self, node: str) -> NodeMemory:
        """The node as the planner sees it. Raises ManagerGoneError."""
        status = self.held(node)
        rates = {name: rate or UNMEASURED_BYTES_PER_S for name, rate in status["rates"].items()}
        return NodeMemory(
            frozenset(status["held"]), rates["link"], rates["disk"], status["memory_bytes"], status["unfinished"]
        )

    def hold(self, node: str, wanted: Sequence[tuple[Region, str | None]]) -> list[dict[str, Any]]:
        """Have regions on a node, each from a node or (None) from disk.

        What came before a failure stays. Raises ManagerGoneError, SourceLostError, MoveError.
        """
        addresses: dict[str, str] = {}
        self._addresses.clear()  # a peer that was started again would be taken for lost
        for peer in {peer for _, peer in wanted if peer is not None}:
            address = self._address(peer)
            if address is None:
                raise SourceLostError(f"node {peer} has no ready weights manager")
            addresses[peer] = address
        regions = [
            {
                "name": region.name,
                "bytes": region.nbytes,
                "sha256": region.sha256,
                "peer": None if peer is None else addresses[peer],
            }
            for region, peer in wanted
        ]
        answers: list[dict[str, Any]] = self._call(node, "/hold", {"regions": regions}, HOLD_TIMEOUT_S)["regions"]
        return answers

    def release(self, node: str, names: list[str]) -> int:
        """Give regions back; returns the bytes. Raises ManagerGoneError."""
        return int(self._call(node, "/release", {"names": names}, CALL_TIMEOUT_S)["freed"])

    def _call(self, node: str, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """One call; a manager that cannot be reached or breaks off is tried again until patience ends."""
        end_s: float | None = None  # patience begins with the first failure: a call that is answered may take long
        headers = {"Authorization": f"Bearer {self._token}"}
        while True:
            why = "has no ready replica"
            address = self._address(node, again=end_s is not None)
            if address is not None:
                try:
                    reply = self._session.post(
                        f"http://{address}{path}", json=body, headers=headers, timeout=(2.0, timeout_s)
                    )
                except (requests.ConnectionError, requests.Timeout) as error:
                    why = f"did not answer ({type(error).__name__})"
                else:
                    if reply.status_code != 503:
                        return self._understood(node, path, reply)
                    why = "stops and has no successor"
            end_s = end_s or time.monotonic() + self._patience_s
            if time.monotonic() > end_s:
                raise ManagerGoneError(f"the weights manager of node {node} {why} for {self._patience_s:.0f} s")
            time.sleep(RETRY_S)

    def _understood(self, node: str, path: str, reply: requests.Response) -> dict[str, Any]:
        if reply.status_code == 200:
            document: dict[str, Any] = reply.json()
            return document
        text = reply.text[:300]
        if reply.status_code == 502:
            raise SourceLostError(f"node {node}: {text}")
        raise MoveError(f"the weights manager of node {node} answered {reply.status_code} to {path}: {text}")

    def _address(self, node: str, *, again: bool = False) -> str | None:
        if again or node not in self._addresses:
            self._addresses = {
                name: str(one["address"])
                for name, replicas in self._client.replicas().items()
                for one in reversed(replicas)
                if one["state"] == "ready"
            }
        return self._addresses.get(function_name(node))
