"""What the modules of ``smoe``'s commands import is among what ``pyproject.toml`` lists as needed."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.docs.words import TEXT

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKED = [room.rstrip("*") for room in CONFIG["tool"]["setuptools"]["packages"]["find"]["include"]]
ROOMS = [room for room in PACKED if room != "benchmarks"]
"""Whose modules commands import."""
EXTRAS = {"rl/": ["rl"], "gateway/jetstream.py": ["nats"]}
"""Beginnings of paths whose modules may import what an extra installs; no other module may."""
CODE = re.compile(rf"#[^\n]*|{TEXT}", re.DOTALL)
"""What is left out of a module before its imports are looked for."""
IMPORT = re.compile(r"^\s*(?:from ([A-Za-z]\w*)[\w.]* import |import ([^\n;]+))", re.MULTILINE)


def named(requirements: Iterable[str]) -> set[str]:
    """Distributions of requirements, in the form in which names are compared."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", one)[0]).lower() for one in requirements}


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a module imports anywhere in it, without the standard library's and the wheel's own."""
    for statement in IMPORT.finditer(CODE.sub("", path.read_text())):
        modules = {re.split(r"[. ]", one.strip())[0] for one in (statement[1] or statement[2]).split(",")}
        yield from modules - sys.stdlib_module_names - {*PACKED}


@cache
def needs() -> list[tuple[str, set[str]]]:
    """(module's path, distributions of which one installs what it imports) of every import."""
    offered = packages_distributions()
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    imports = ((path.relative_to(ROOT).as_posix(), name) for path in paths for name in imported(path))
    return [(path, named(offered.get(name, [name]))) for path, name in imports]


def undeclared(extras: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
    """(module's path, distribution) of every import that neither the dependencies nor the path's extras install."""
    project = CONFIG["project"]
    by_extra = {extra: named(requirements) for extra, requirements in project["optional-dependencies"].items()}
    always, missing = named(project["dependencies"]), set()
    for path, offering in needs():
        allowed = [by_extra[extra] for start, names in extras.items() if path.startswith(start) for extra in names]
        if not offering & always.union(*allowed):
            missing.add((path, min(offering)))
    return missing


@pytest.mark.slow
def test_every_package_that_commands_import_is_among_the_dependencies() -> None:
    assert undeclared(EXTRAS) == set()


def test_a_package_that_only_an_extra_installs_is_noticed() -> None:
    missing = undeclared({})
    assert ("gateway/jetstream.py", "nats-py") in missing
    assert {path.partition("/")[0] for path, _ in missing} == {"rl", "gateway"}
