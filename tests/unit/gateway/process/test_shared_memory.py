"""Weights are mapped, not copied: more replicas of one file cost little."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ask_json, ready, spec, until

pytestmark = pytest.mark.slow

MIB = 1 << 20
WEIGHTS = 64 * MIB


def proportional_bytes(pids: list[int]) -> int:
    """Sum of proportional set sizes: shared pages are counted once in all."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    return sum(int(line.split()[1]) * 1024 for lines in rollups for line in lines if line.startswith("Pss:"))


async def test_eight_replicas_of_a_mapped_file_cost_little_more_than_one(running: Starter, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * WEIGHTS)
    async with running(images={"test/mapped": "tests.unit.gateway.process.entries:mapped"}) as backend:
        await backend.create(spec("f", "mapped", env_vars={"weights": str(weights)}), 1)
        one = await until(backend, "f", ready(1))
        assert (await ask_json(one.ready[0].address))["sum"] == WEIGHTS * ord("w")
        pss_one = proportional_bytes([replica.pid for replica in one.ready if replica.pid])
        await backend.scale("f", NAMESPACE, 8)
        eight = await until(backend, "f", ready(8))
        for replica in eight.ready:
            await ask_json(replica.address)
        pss_eight = proportional_bytes([replica.pid for replica in eight.ready if replica.pid])
    assert pss_one > WEIGHTS
    assert pss_eight < pss_one + WEIGHTS
