"""What several rooms' tests share: the default pipeline, split once for a whole test run, and a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.cluster.namespaces import Namespaces

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a busy machine is no failure


@pytest.fixture(scope="session")
def minilm_pipeline(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Folder of the default pipeline, real weights and adapter."""
    from smoe.pipelines import ensure_pipeline

    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with FileLock(shared / "minilm.lock"):
        folder, _ = ensure_pipeline("minilm", shared / "pipelines")
    return folder


@pytest.fixture(scope="session")
def namespaces() -> Iterator[Namespaces]:
    """Of the cluster that ``SMOE_TEST_KUBECONFIG`` names."""
    from tests.cluster.namespaces import KUBECONFIG, namespaces_of

    with namespaces_of(Path(KUBECONFIG)) as found:
        yield found
