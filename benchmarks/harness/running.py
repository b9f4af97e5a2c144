"""A gateway of the benchmark's own, and a pipeline on it, for as long as a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway, read_password
from moe.manifest import Manifest
from placement.moves.managers import NodeSettings, start_nodes
from smoe import lifecycle
from smoe.deployment import DeploymentSettings
from smoe.lifecycle import GatewaySettings
from smoe.pipelines import ensure_pipeline

START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that runs, on ports that were free."""

    settings: GatewaySettings

    @property
    def state(self) -> Path:
        return self.settings.state

    @property
    def pid(self) -> int:
        return int(read_gateway(self.state)["pid"])

    @property
    def auth(self) -> tuple[str, str]:
        return "admin", read_password(self.state)

    def connect(self) -> GatewayClient:
        """A client of its own for whoever asks: a session is for one thread."""
        return GatewayClient.from_state(self.state)


@dataclass(frozen=True)
class RunningPipeline:
    """A pipeline that answers."""

    gateway: RunningGateway
    client: GatewayClient
    directory: Path
    manifest: Manifest
    functions: tuple[str, ...]
    """Names of what was deployed, the ingress first."""

    @property
    def url(self) -> str:
        return f"{self.client.url}/function/{self.manifest.name}"

    def addresses(self, machines: Sequence[str]) -> list[str]:
        """Address of the ready ingress on each of these machines."""
        replicas = self.client.replicas()[self.functions[0]]
        by_machine = {replica["node"]: str(replica["address"]) for replica in replicas if replica["state"] == "ready"}
        return [by_machine[machine] for machine in machines]

    def workers(self, *, ingress: bool = True) -> dict[int, str]:
        """Process id → function of all ready replicas; those of the ingress only where they are asked for."""
        owners = listening(self.gateway.pid)
        return {
            owners[port]: name
            for name, replicas in self.client.replicas().items()
            if ingress or name != self.functions[0]
            for replica in replicas
            if replica["state"] == "ready" and (port := int(replica["address"].rsplit(":", 1)[1])) in owners
        }


def listening(gateway_pid: int) -> dict[int, int]:
    """Listening port → process id, over all processes below the gateway."""
    pid_of_port = {}
    for child in psutil.Process(gateway_pid).children(recursive=True):
        with suppress(psutil.Error):  # others come and go meanwhile
            for connection in child.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    pid_of_port[connection.laddr.port] = child.pid
    return pid_of_port


def local_gateway(
    state: Path,
    *,
    cpu_scale: float = 1.0,
    cpu_period_ms: float = GatewaySettings.cpu_period_ms,
    machines: Sequence[str] = (),
    standbys: int = GatewaySettings.standbys,
) -> GatewaySettings:
    """Settings of a gateway on free ports, with ``machines`` emulated."""
    return GatewaySettings(
        state, port=0, metrics_port=0, cpu_scale=cpu_scale, nodes=tuple(machines), standbys=standbys,
        cpu_period_ms=cpu_period_ms,
    )  # fmt: skip


@contextmanager
def running_gateway(settings: GatewaySettings) -> Iterator[RunningGateway]:
    """Started when the block begins, stopped when it ends, and by the kernel where this process is killed."""
    process = lifecycle.start_gateway(settings, detach=False)
    try:
        yield RunningGateway(settings)
    finally:
        lifecycle.stop_process(process)


@contextmanager
def running_pipeline(
    settings: GatewaySettings,
    deployment: DeploymentSettings | None = None,
    pipeline: str = "minilm",
    memory: NodeSettings | None = None,
) -> Iterator[RunningPipeline]:
    """A gateway with a preset (or folder) deployed. ``memory``: of the weights manager on every emulated machine."""
    directory, manifest = ensure_pipeline(pipeline, settings.pipelines)
    with running_gateway(settings) as gateway:
        client = gateway.connect()
        if memory is not None:
            start_nodes(client, gateway.state, manifest, dict.fromkeys(settings.nodes, memory))
        deployment = deployment or DeploymentSettings()
        entries = lifecycle.deploy_pipeline(client, manifest, deployment, timeout_s=START_TIMEOUT_S)
        names = tuple(str(entry["service"]) for entry in entries)
        yield RunningPipeline(gateway, client, directory, manifest, names)
