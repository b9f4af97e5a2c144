"""What several rooms' tests share: the default pipeline, split once for a whole test run."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(scope="session")
def minilm_pipeline(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Folder of the default pipeline, real weights and adapter."""
    from smoe.pipelines import ensure_pipeline

    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with FileLock(shared / "minilm.lock"):
        folder, _ = ensure_pipeline("minilm", shared / "pipelines")
    return folder
