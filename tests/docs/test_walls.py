"""The walls between rooms (.importlinter) hold: an import planted where it is forbidden is reported."""

from __future__ import annotations

import configparser
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = configparser.ConfigParser()
RULES.read(ROOT / ".importlinter")
ROOMS = RULES["importlinter"]["root_packages"].split()


def lines(contract: str, key: str) -> list[str]:
    return RULES[f"importlinter:contract:{contract}"][key].split("\n")[1:]


def lowest_module(package: Path) -> Path:
    """A file of a room or of a fenced module to plant an import into."""
    return package.with_suffix(".py") if package.with_suffix(".py").is_file() else package / "__init__.py"


def planted() -> list[tuple[str, str]]:
    """(module, forbidden import): upwards between each two neighbouring layers, and two of each forbidden list into
    each module that it fences, by turns, so that the whole list is planted where it fences enough modules."""
    layers = [layer.replace(" ", "").split("|") for layer in lines("layers", "layers")]
    imports = [
        (low, f"{high}.planted_target")
        for above, below in itertools.pairwise(layers)
        for low in below
        for high in above
    ]
    for name, section in RULES.items():
        if not name.startswith("importlinter:contract:") or section["type"] != "forbidden":
            continue
        forbidden = section["forbidden_modules"].split()
        for turn, source in enumerate(section["source_modules"].split()):
            imports += [(source, target) for target in (forbidden[turn % len(forbidden)], forbidden[-1])]
    return imports


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the rooms, and a module in each that a planted import names."""
    copy = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors", "data"))
        (copy / room / "planted_target.py").write_text('"""Nothing."""\n')
    shutil.copy(ROOT / ".importlinter", copy)
    return copy


def report(tree: Path) -> tuple[int, str]:
    """Exit status and output of import-linter on a tree, on lines of any length."""
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tree, capture_output=True, text=True, timeout=110, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_the_tree_as_it_is_keeps_every_rule(tree: Path) -> None:
    status, output = report(tree)
    assert status == 0, output


@pytest.mark.slow
def test_every_planted_import_is_reported(tree: Path) -> None:
    imports = planted()
    assert len(imports) > 40
    for module, target in imports:
        path = lowest_module(tree / module.replace(".", "/"))
        path.write_text(path.read_text() + f"\nimport {target}\n")
    status, output = report(tree)
    assert status != 0
    missed = [(module, target) for module, target in imports if f"- {module} -> {target} " not in flat(output)]
    assert missed == []


def flat(output: str) -> str:
    """The report with its arrows in one form."""
    return " ".join(output.split()).replace("-   ", "- ")
