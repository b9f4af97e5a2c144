"""Which code a result depends on: the modules that its entry points import, however indirectly.

The imports are read from the source, those inside functions too. Docstrings, comments and layout do not count, so a
reworded sentence, or a module that the result never runs through, leaves stored results valid.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = (
    "autoscaler",
    "benchmarks",
    "evaluation",
    "functions",
    "gateway",
    "moe",
    "placement",
    "platform_words",
    "rl",
    "simulation",
    "smoe",
    "traces",
)
"""Top-level packages of this project. Versions of other packages are recorded by name, not hashed."""
GIT_TIMEOUT_S = 10.0


@cache
def code_sha256(*entry_points: str) -> str:
    """Hash of the code that ``entry_points`` (names of modules) run through, as it is when it is first asked for.

    Modules of other packages are left out. Raises SyntaxError where a module cannot be read as Python.
    """
    digest = hashlib.sha256()
    for module, path in sorted(import_closure(entry_points, ROOT).items()):
        digest.update(module.encode() + b"\0" + _read(module, path).code_sha256 + b"\0")
    return digest.hexdigest()


def commit(root: Path = ROOT) -> str | None:
    """Hash of the commit that is checked out at ``root``, with ``+changes`` behind it where tracked files differ from
    it; None where ``root`` is no checkout's top folder (an installed package) or git is not there."""
    if not (root / ".git").exists():
        return None
    try:
        git = partial(subprocess.run, cwd=root, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S)
        revision = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        changes = git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{revision}+changes" if changes else revision


def import_closure(entry_points: tuple[str, ...], root: Path) -> dict[str, Path]:
    """Module → file of ``entry_points`` and all that they import from the packages under ``root``, packages of a
    module included."""
    files: dict[str, Path | None] = {}
    pending = [package for module in entry_points for package in _with_packages(module)]
    while pending:
        module = pending.pop()
        if module in files:
            continue
        path = files[module] = _file_of(module, root)
        for imported in () if path is None else _read(module, path).imports:
            pending += _with_packages(imported)
    return {module: path for module, path in files.items() if path is not None}


class _Module(NamedTuple):
    code_sha256: bytes
    imports: frozenset[str]


@cache
def _read(module: str, path: Path) -> _Module:
    """A module's code and imports; cached, since the closures of entry points overlap."""
    tree = ast.parse(path.read_text())
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    imports = frozenset(_imports(tree, package))
    return _Module(hashlib.sha256(code_of(tree).encode()).digest(), imports)


def code_of(tree: ast.Module) -> str:
    """The syntax tree as text, without docstrings, comments and positions.

    Any expression that is only a string counts as a docstring: it does nothing, and below an attribute it is one.
    They are gone from ``tree`` then.
    """
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [statement for statement in statements if not _is_text(statement)])
    return ast.dump(tree)


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Names that may be modules: ``from a import b`` names ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_packages(module: str) -> list[str]:
    """``a.b.c`` and the packages ``a`` and ``a.b``, whose code runs when it is imported."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _file_of(module: str, root: Path) -> Path | None:
    """Its file; None for modules of other packages, which may be installed in the same folder, and for names that are
    no module."""
    if module.partition(".")[0] not in ROOMS:
        return None
    place = root.joinpath(*module.split("."))
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in files if path.is_file()), None)
