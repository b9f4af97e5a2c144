"""Finding a pipeline by what the user calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smoe.errors import SmoeError
from smoe.pipelines import ensure_pipeline


@pytest.mark.parametrize(("name", "called"), [("MoE-A2.7B/config.json", "MoE-A2.7B"), ("MoE-A2.7B.gguf", "MoE-A2.7B")])
def test_a_checkpoint_is_answered_with_the_command_that_splits_it(tmp_path: Path, name: str, called: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    given = file if file.suffix == ".gguf" else file.parent
    with pytest.raises(SmoeError, match=f"`smoe pipeline split {given} --out pipelines/{called}` makes"):
        ensure_pipeline(str(given), tmp_path / "pipelines")


def test_a_name_of_nothing_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SmoeError, match=r"'nothing' is neither a pipeline folder nor a pipeline or preset; .*minilm"):
        ensure_pipeline("nothing", tmp_path)


def test_a_preset_that_is_split_already_is_there_before_torch_could_be_imported(minilm_pipeline: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from smoe.pipelines import ensure_pipeline
print(ensure_pipeline("minilm", Path({str(minilm_pipeline.parent)!r}))[1].name, "torch" in sys.modules)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["minilm", "False"]
