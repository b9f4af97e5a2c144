"""Which changes of code make another hash, and which do not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation import provenance
from evaluation.comparison.grid import Grid, maker_modules
from evaluation.provenance import ROOMS, ROOT, code_sha256, commit, import_closure

SOURCES = {
    "rl/__init__.py": '"""A room."""\n',
    "rl/entry.py": "from rl import middle\n\n\ndef run():\n    from simulation.late import LATE\n    "
    "return middle, LATE\n",
    "rl/middle.py": "import numpy\nfrom .leaf import VALUE\n",
    "rl/leaf.py": '"""What it is."""\n\nVALUE = 1  # a comment\n"""A number."""\n\n\n'
    'class Error(Exception):\n    """Why."""\n',
    "rl/unrelated.py": "VALUE = 2\n",
    "simulation/__init__.py": "",
    "simulation/late.py": "LATE = 3\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    provenance.code_sha256.cache_clear()
    provenance._read.cache_clear()


def hashed(root: Path, name: str, source: str) -> str:
    """The entry point's hash with another ``source`` of one file."""
    (root / name).write_text(source)
    forget()
    return code_sha256("rl.entry")


def test_the_closure_is_what_an_entry_point_imports_with_packages_and_late_imports(root: Path) -> None:
    closure = import_closure(("rl.entry",), root)
    assert set(closure) == {"rl", "rl.entry", "rl.middle", "rl.leaf", "simulation", "simulation.late"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param(
            "rl/leaf.py", '"""Reworded."""\nVALUE = 1\n\nclass Error(Exception):\n    """Else."""\n', id="words"
        ),
        pytest.param("rl/unrelated.py", "VALUE = 3\n", id="a module that nobody imports"),
        pytest.param("rl/__init__.py", "# nothing\n", id="a package's docstring"),
    ],
)
def test_words_layout_and_other_modules_change_nothing(root: Path, name: str, source: str) -> None:
    before = code_sha256("rl.entry")
    assert hashed(root, name, source) == before


@pytest.mark.parametrize(
    ("name", "source"),
    [
        pytest.param("rl/leaf.py", SOURCES["rl/leaf.py"].replace("VALUE = 1", "VALUE = 2"), id="a constant"),
        pytest.param("simulation/late.py", "LATE = 4\n", id="a constant imported late"),
        pytest.param("rl/__init__.py", "import rl.unrelated\n", id="a package's import"),
    ],
)
def test_changed_code_that_is_imported_changes_the_hash(root: Path, name: str, source: str) -> None:
    before = code_sha256("rl.entry")
    assert hashed(root, name, source) != before


def test_a_module_under_another_name_is_other_code(root: Path) -> None:
    assert code_sha256("rl.leaf") != code_sha256("rl.unrelated")


def test_rooms_are_the_packages_of_this_project() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests"} == set(ROOMS)


@pytest.mark.slow
def test_a_run_s_code_is_the_evaluation_s_and_its_policy_s() -> None:
    assert maker_modules("hpa") == [] and maker_modules("smoe") == ["rl.agent.policy"]
    grid = Grid(("bert-4",), ("slow",), (0,), ("hpa", "kpa", "faasconf"), (0,))
    hpa, kpa, learnt = (grid.made_by("bert-4", policy)["code_sha256"] for policy in grid.policies)
    assert hpa == kpa != learnt
    assert not any(module.startswith("rl") for module in import_closure(("evaluation.comparison.run",), ROOT))


@pytest.mark.slow
def test_neither_evaluation_nor_simulation_reaches_learning() -> None:
    modules = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for room in ("evaluation", "simulation")
        for path in (ROOT / room).rglob("*.py")
    ]
    closure = import_closure(tuple(modules), ROOT)
    assert not [module for module in closure if module.partition(".")[0] in ("rl", "smoe", "benchmarks")]


def test_a_checkout_has_a_commit_and_states_changes_and_a_folder_below_it_has_none(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        made = subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return made.stdout.strip()

    git("init", "-q")
    (tmp_path / "installed").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "out.json").write_text("{}")
    assert commit(tmp_path) == git("rev-parse", "HEAD"), "a file of results is no change"
    (tmp_path / "a.py").write_text("x = 2\n")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')}+changes"
    assert commit(tmp_path / "installed") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    assert commit(tmp_path) is None, "no repository"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None, "no git"
