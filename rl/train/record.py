"""What made a file: settings, seed, code, traces, versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evaluation.comparison.arrivals import DATASETS
from evaluation.provenance import code_sha256
from rl.train.settings import TrainingSettings
from traces import catalog
from traces.provenance import path_sha256

PACKAGES = ("smoe", "torch", "stable-baselines3", "gymnasium", "numpy", "numba")


def traces_sha256(data: Path | None) -> dict[str, str]:
    """Dataset → hash of the file that clips are taken from; empty where hours are made."""
    data_sets = {dataset.name: dataset.path for dataset in catalog.datasets(catalog.data_folder(data))}
    return next(({name: path_sha256(data_sets[name])} for name in DATASETS if name in data_sets), {})


def record(settings: TrainingSettings, data: Path | None) -> dict[str, Any]:
    """JSON of all that a run is made from."""
    return {
        "settings": settings.as_json(),
        "code_sha256": code_sha256("rl.train.run"),
        "traces_sha256": traces_sha256(data),
        "pipelines_sha256": {pipeline.name: pipeline.sha256 for pipeline in settings.pipelines},
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
