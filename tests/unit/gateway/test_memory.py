"""What a gateway holds in memory at most, against the memory that it has."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gateway import main
from gateway.memory import held_bytes_of, memory_bytes, untaken_bytes_of
from gateway.settings import GatewaySettings
from platform_words.resources import parse_quantity

MIB = 1 << 20
DEPLOY = Path(__file__).parents[3] / "deploy"
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_half_of_the_memory_is_for_bodies_and_no_more_than_512_mib() -> None:
    assert [held_bytes_of(mib * MIB) // MIB for mib in (128, 1024, 24 * 1024)] == [64, 512, 512]


@pytest.mark.parametrize(
    ("listing", "files", "expected"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "1000", "memory.max": "max"}, 1000),
        ("0::/a/b", {"a/b/memory.max": "500", "a/memory.max": "1000"}, 500),
        ("0::/elsewhere", {"memory.max": "700"}, 700),
        ("3:cpu:/x\n2:memory:/a", {"memory/a/memory.limit_in_bytes": "300", "x/memory.max": "1"}, 300),
        ("2:memory:/elsewhere", {"memory/memory.limit_in_bytes": "400"}, 400),
        ("2:memory:/a", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, MACHINE),
        ("0::/", {}, MACHINE),
    ],
)
def test_the_least_limit_of_the_own_cgroup_and_those_above_counts(
    tmp_path: Path, listing: str, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "listing").write_text(f"{listing}\n")
    assert memory_bytes(tmp_path, tmp_path / "listing") == expected


def test_without_cgroups_the_machine_s_memory_counts(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "nothing") == MACHINE


@pytest.mark.parametrize(
    ("flags", "expected_mib"),
    [(("--memory-mib", "64"), (32, 16, 8)), ((), (100, 50, 25))],
)
def test_bounds_follow_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected_mib: tuple[int, int, int]
) -> None:
    begun: list[GatewaySettings] = []

    async def serve(settings: GatewaySettings, cluster: object) -> None:
        begun.append(settings)

    monkeypatch.setattr(main, "serve", serve)
    monkeypatch.setattr(main, "memory_bytes", lambda: 200 * MIB)
    ended = CliRunner().invoke(main.main, ["--state", str(tmp_path / "s"), *flags])
    assert ended.exit_code == 0, ended.output
    bounds = (begun[0].held_bytes, begun[0].async_held_bytes, begun[0].untaken_bytes)
    assert tuple(bound // MIB for bound in bounds) == expected_mib


def shipped_limits() -> list[int]:
    """Memory limits of the gateway's pod, in the manifest and in the chart's values."""
    deployment: Any = next(yaml.safe_load_all((DEPLOY / "kubernetes" / "gateway.yaml").read_text()))
    values: Any = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())
    containers = deployment["spec"]["template"]["spec"]["containers"]
    resources = [*(one["resources"] for one in containers), values["gateway"]["resources"]]
    return [int(parse_quantity(one["limits"]["memory"])) for one in resources]


@cache
def gateway_bytes() -> int:
    """The most that the gateway's program itself has held once it is imported."""
    script = (
        "import aiohttp, uvloop, gateway.main, gateway.backends.kubernetes.backend\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    return int(subprocess.check_output([sys.executable, "-c", script])) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("limit", shipped_limits())
def test_all_that_is_held_fits_the_shipped_pod_beside_the_gateway_itself(limit: int) -> None:
    usual = GatewaySettings
    heads = usual.max_connections * usual.max_head_bytes
    running = usual.async_workers * usual.async_body_bytes  # calls of a queue that NATS keeps
    assert (own := gateway_bytes()) > 20 * MIB
    assert held_bytes_of(limit) + untaken_bytes_of(limit) + heads + running + own < limit
