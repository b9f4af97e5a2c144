"""What made a file: settings, seed, code, traces, versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evaluation.provenance import code_sha256
from rl.train.settings import TrainingSettings
from traces import catalog
from traces.provenance import path_sha256
from traces.traffic import DATA_SETS

PACKAGES = ("smoe", "torch", "stable-baselines3", "gymnasium", "numpy", "numba")


def traces_sha256(data: Path | None) -> dict[str, str]:
    """Data set → hash of its file, for all that clips are taken from; empty where arrivals are synthetic."""
    data_sets = catalog.datasets(catalog.data_folder(data))
    return {dataset.name: path_sha256(dataset.path) for dataset in data_sets if dataset.name in DATA_SETS}


def record(settings: TrainingSettings, data: Path | None) -> dict[str, Any]:
    """JSON of all that a run is made from."""
    return {
        "settings": settings.as_json(),
        "code_sha256": code_sha256("rl.train.run"),
        "traces_sha256": traces_sha256(data),
        "pipelines_sha256": {pipeline.name: pipeline.sha256 for pipeline in settings.pipelines},
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
