"""Regions lent on a real GPU, by CUDA IPC between real processes. Skipped where there is none: never seen to pass."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moe.manifest import load

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None,
        reason="needs the package cuda-bindings",
    ),
]
Program = subprocess.Popen[str]


@pytest.fixture
def started() -> Iterator[Callable[..., Program]]:
    running: list[Program] = []

    def start(*arguments: object) -> Program:
        command = [sys.executable, "-m", "tests.unit.functions.real_gpu", *map(str, arguments)]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.communicate(timeout=100)


def line_of(program: Program) -> Any:
    assert program.stdout is not None
    text = program.stdout.readline()
    assert text, "the program ended; its error is above"
    return json.loads(text)


def lending(started: Callable[..., Program], bert: Path, folder: Path) -> Program:
    """The manager of a node with this memory folder, which holds the pipeline."""
    shutil.copytree(bert, folder / "tiny")
    manager = started("lend", folder)
    assert manager.stdout is not None
    assert manager.stdout.readline() == "ready\n"
    return manager


def test_two_workers_compute_on_one_copy_as_on_the_host(
    bert: Path, tmp_path: Path, started: Callable[..., Program]
) -> None:
    folder = tmp_path / "node"
    manager = lending(started, bert, folder)
    first, second = (started("map", folder, bert, "tiny") for _ in range(2))
    found = [line_of(first), line_of(second)]
    for one in found:
        assert one["worst"] < 1e-3
        assert one["own_bytes"] == 0  # of PyTorch's own memory neither took any for weights
    for worker in (first, second):
        worker.communicate(timeout=100)
        assert worker.returncode == 0
    held, _ = manager.communicate(timeout=100)
    names = [one["name"] for one in json.loads(held)]
    assert sorted(names) == sorted(
        {f"tiny/{node.weights.file}" for node in load(bert, verify=False).nodes}
    )  # once each


def test_a_worker_notices_that_its_manager_is_killed(
    bert: Path, tmp_path: Path, started: Callable[..., Program]
) -> None:
    folder = tmp_path / "node"
    manager = lending(started, bert, folder)
    worker = started("map", folder, bert, "tiny")
    line_of(worker)
    manager.kill()
    manager.wait(30)
    worker.communicate(timeout=100)
    assert worker.returncode != 0
