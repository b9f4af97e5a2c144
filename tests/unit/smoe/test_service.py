"""What ``smoe up`` and ``smoe pipeline split`` show while they work."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from moe import commands as splitting
from moe.manifest import load
from smoe.commands import service
from smoe.deployment import DeploymentSettings


@pytest.mark.parametrize("terminal", [True, False])
def test_a_deployment_has_a_bar_on_a_terminal_and_writes_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, minilm_pipeline: Path, terminal: bool
) -> None:
    monkeypatch.setattr(service.lifecycle, "deploy_pipeline", lambda *given: given[-1](3))
    console = Console(file=StringIO(), force_terminal=terminal, width=100)
    manifest = load(minilm_pipeline, verify=False)
    service._deploy_with_progress(None, manifest, DeploymentSettings(), console)  # type: ignore[arg-type]
    assert isinstance(console.file, StringIO)
    assert ("deploying" in console.file.getvalue()) is terminal and bool(console.file.getvalue()) is terminal


def test_a_split_off_a_terminal_writes_nothing_of_a_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with splitting._split_progress() as progress:
        progress("expert-0-0", 1, 2)
    assert capfd.readouterr() == ("", "")
