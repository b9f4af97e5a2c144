"""The wheel in an environment of its own, as a newcomer has it: the main job scales experts, by themselves and for a
reason, and no file of the source tree is read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.own_policy import TEMPLATE
from moe.preset import byte_tokenizer
from tests.unit.moe import tiny

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PACKAGES = Path(sysconfig.get_paths()["purelib"])
RESOLVED = ROOT / ".venv" / "wheel"
"""Environment that CI makes (`make .venv/wheel/.installed`): a wheel with what it asks for, as pip resolved it."""
ROOMS = ("moe", "functions", "gateway", "autoscaler", "placement", "simulation", "evaluation", "rl", "traces", "smoe")
WATCH = """
import os, sys

def watch(event, given):
    if event == "open" and isinstance(given[0], (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(given[0]))
        if path.startswith({root!r} + "/") and not path.startswith(({venv!r}, {packages!r})):
            with open({log!r}, "a") as log:
                log.write(path + chr(10))

sys.addaudithook(watch)
"""
"""Every process of the environment begins with it (sitecustomize): what it opens of the source tree is written down."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The environment's folder of programs, and the list of what was opened of the source tree.

    Where CI has made none, packages that the project needs come from this test's environment through a .pth file. That
    folder's own .pth files, and so an editable installation of this tree, are not read.
    """
    folder = tmp_path_factory.mktemp("wheel")
    _done([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)], folder)
    (wheel,) = (folder / "dist").glob("smoe-*.whl")
    assert len(list((folder / "dist").glob("smoe-*.tar.gz"))) == 1
    resolved = (RESOLVED / ".installed").is_file()
    venv = RESOLVED if resolved else folder / "venv"
    if not resolved:
        _done([sys.executable, "-m", "venv", "--without-pip", str(venv)], folder)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    _done([*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)], folder)
    (own,) = venv.glob("lib/python*/site-packages")
    if resolved:
        _done([*pip, "check"], folder)
    else:
        (own / "needed.pth").write_text(f"{PACKAGES}\n")
    opened, packages = folder / "opened", (RESOLVED, RESOLVED) if resolved else (ROOT / ".venv", PACKAGES)
    watch = WATCH.format(root=str(ROOT), venv=str(packages[0]), packages=str(packages[1]), log=str(opened))
    (own / "sitecustomize.py").write_text(watch)
    yield venv / "bin", opened
    (own / "sitecustomize.py").unlink()


def _done(command: list[str], folder: Path, timeout_s: float = 600) -> str:
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.timeout(900)
def test_the_main_job_scales_experts_one_by_one_and_says_why(installed: tuple[Path, Path], tmp_path: Path) -> None:
    programs, opened = installed
    printed = _done([str(programs / "smoe"), "demo", "--seconds", "10"], tmp_path)
    assert "equal the whole model's" in printed and "experts were scaled" in printed
    numbers = json.loads((tmp_path / "smoe-demo" / "report.json").read_text())
    assert numbers["requests"]["ok"] > 0
    assert numbers["replicas"]["experts_scaled"] >= 2
    assert numbers["replicas"]["different_at_once"] >= 2
    assert any("work for" in reason for reason in numbers["actions"]["by_reason"])
    assert 1 <= numbers["replicas"]["least"] <= 32, "the ingress runs, the others sleep while no request comes"
    windows = re.findall(r"^t=\d+s .*expert_replicas=(\d+)", printed, re.MULTILINE)
    assert windows and windows[0] == "24", "each window has a line, with the replicas of then"
    assert (tmp_path / "smoe-demo" / "report.html").stat().st_size > 10_000
    assert not opened.exists(), opened.read_text()


@pytest.mark.parametrize(
    "command",
    [
        ["traces", "list"],
        ["pipeline", "stack", "minilm"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_that_read_packaged_data_run_from_the_wheel(
    installed: tuple[Path, Path], command: list[str], tmp_path: Path
) -> None:
    programs, opened = installed
    _done([str(programs / "smoe"), *command], tmp_path)
    assert not opened.exists(), opened.read_text()


def test_a_checkpoint_and_a_policy_of_one_s_own_run_from_the_wheel(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    smoe, opened = str(installed[0] / "smoe"), installed[1]
    checkpoint = tiny.store(tiny.build("mixtral", vocab_size=300, eos_token_id=299), tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    _done([smoe, "pipeline", "split", "checkpoint", "--out", "mine"], tmp_path)
    _done([smoe, "up", "mine", "--port", "0", "--metrics-port", "0"], tmp_path)
    (tmp_path / "policy.py").write_text(TEMPLATE)
    autoscale = ["autoscale", "mine", "--policy", "policy.py:make", "--interval", "1", "--ticks", "2", "--json"]
    try:
        *_, tick = _done([smoe, *autoscale], tmp_path).splitlines()
        answer = json.loads(_done([smoe, "invoke", "mine", "the cat", "--max-new-tokens", "3", "--json"], tmp_path))
    finally:
        _done([smoe, "down"], tmp_path)
    assert len(answer["outputs"]) == 1
    assert json.loads(tick)["decisions"] > json.loads(tick)["held"]
    assert "Tune every opponent" in _done([smoe, "lab", "compare", "--help"], tmp_path)
    assert not opened.exists(), opened.read_text()


def test_pages_that_help_texts_and_errors_name_are_installed(installed: tuple[Path, Path]) -> None:
    environment = installed[0].parent
    modules = [module for room in ROOMS for module in environment.glob(f"lib/python*/site-packages/{room}/**/*.py")]
    named = {page for module in modules for page in re.findall(r"docs/[\w-]+\.md", module.read_text())}
    assert {"docs/policies.md", "docs/models.md", "docs/own-policy.md"} <= named
    assert [page for page in named if not (environment / "share" / "doc" / "smoe" / page).is_file()] == []


def test_every_module_of_the_wheel_is_its_own(installed: tuple[Path, Path], tmp_path: Path) -> None:
    programs, _ = installed
    code = f"import importlib; [print(importlib.import_module(room).__file__) for room in {ROOMS!r}]"
    files = _done([str(programs / "python"), "-c", code], tmp_path).split()
    assert len(files) == len(ROOMS)
    assert all(Path(file).is_relative_to(programs.parent) for file in files)
