"""A replica's CPU until it is ready: the startup CPU boost, read from the kernel's files."""

from __future__ import annotations

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.cgroup.limits import CgroupsV1
from gateway.backends.process.function import ManagedFunction
from tests.parameters import some_fast
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ready, spec, until
from tests.unit.gateway.process.test_limits import share_seen

pytestmark = pytest.mark.usefixtures("enforced")


def cores_seen(backend: ProcessBackend, name: str = "f") -> float | None:
    """Cores of the function's first replica; None: no limit."""
    slot = next(iter(backend.function(name, NAMESPACE).replicas.values())).slot
    cgroups = backend.launcher.cgroups
    if isinstance(cgroups, CgroupsV1):
        folder = next(folder / slot for folder in cgroups.folders if (folder / slot / "cpu.shares").exists())
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return None if quota < 0 else quota / period
    quota_text, period_text = (cgroups.folders[0] / slot / "cpu.max").read_text().split()
    return None if quota_text == "max" else int(quota_text) / int(period_text)


STARTS = [
    pytest.param("200m", 0.8, 0.8, id="less than the boost"),
    pytest.param("4", 0.8, 2.0, id="more than the boost"),
    pytest.param("200m", 0.0, 0.1, id="no boost"),
    pytest.param("", 0.8, None, id="no limit"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "boost", "starting"), some_fast(STARTS, 2))
async def test_a_replica_that_starts_has_the_boost_or_its_own_limit_where_that_is_more(
    running: Starter, limit: str, boost: float, starting: float | None
) -> None:
    async with running(cpu_scale=0.5, startup_cpu_boost=boost, starting_share=0.25) as backend:
        await backend.create(spec("f", "never_ready", limits={"cpu": limit} if limit else {}), 1)
        await until(backend, "f", lambda state: bool(state.replicas and state.replicas[0].address))
        assert cores_seen(backend) == (None if starting is None else pytest.approx(starting))
        slot = next(iter(backend.function("f", NAMESPACE).replicas.values())).slot
        assert share_seen(backend, slot) == 0.25


async def test_a_ready_replica_has_its_own_limit_before_anybody_hears_of_it(
    running: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ready: list[float | None] = []
    on_ready = ManagedFunction._on_ready

    def noted(self: ManagedFunction, *arguments: object) -> None:
        at_ready.append(cores_seen(backend))
        on_ready(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ManagedFunction, "_on_ready", noted)
    async with running(startup_cpu_boost=0.8) as backend:
        await backend.create(spec("f", limits={"cpu": "100m"}), 1)
        await until(backend, "f", ready(1))
        assert (at_ready, cores_seen(backend)) == ([pytest.approx(0.1)], pytest.approx(0.1))


@pytest.mark.slow
async def test_a_limit_that_changes_during_a_start_counts_from_its_end(running: Starter) -> None:
    async with running(startup_cpu_boost=0.8) as backend:
        await backend.create(spec("f", "never_ready", limits={"cpu": "100m"}), 1)
        await until(backend, "f", lambda state: bool(state.replicas and state.replicas[0].address))
        await backend.update(spec("f", "never_ready", limits={"cpu": "300m"}))
        assert cores_seen(backend) == pytest.approx(0.8)
        await backend.update(spec("f", "never_ready", limits={"cpu": "900m"}))
        assert cores_seen(backend) == pytest.approx(0.9)
