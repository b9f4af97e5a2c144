"""How many broken lines the tests notice.

    python -m benchmarks.mutation --seed 0

Breaks one line at a time in a copy of the tree (a comparison turned round, a number changed, a call dropped, a
condition negated), spread over all rooms, and runs the tests that could notice: first those that import the broken
module, then those of its room, then the slow ones of both. A mutant is *caught* when a test fails or the run does not
end in time. The last line is one JSON object with ``mutants`` and ``caught``.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import click

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("moe", "functions", "gateway", "autoscaler", "placement", "simulation", "evaluation", "rl", "traces", "smoe")
TURNED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
UNTOUCHED = ("click.", "logging", "log.", "warnings.", "echo", "__main__")
"""Lines with these are passed over: help texts and logging are promises to people that no test of behaviour holds."""
LONGEST_TESTS_S = 400.0


@dataclass(frozen=True)
class Mutant:
    """One broken line; ``begin`` and ``end`` are the offsets of the replaced text in the file."""

    path: str
    line: int
    kind: str
    begin: int
    end: int
    text: str


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every mutant of one file's functions; constants of modules and docstrings are left alone."""
    offsets = [0]
    for row in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(row))
    rows = source.splitlines()

    def mutant(node: ast.expr | ast.stmt, kind: str, text: str) -> Iterator[Mutant]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        if not any(word in rows[node.lineno - 1] for word in UNTOUCHED):
            begin = offsets[node.lineno - 1] + node.col_offset
            yield Mutant(path, node.lineno, kind, begin, offsets[node.end_lineno - 1] + node.end_col_offset, text)

    def of(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in TURNED:
            turned = ast.Compare(node.left, [TURNED[type(node.ops[0])]()], node.comparators)
            yield from mutant(node, "comparison", f"({ast.unparse(turned)})")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and node.value is not bool(node.value)
        ):
            yield from mutant(node, "constant", repr(node.value + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from mutant(node, "call", "pass")
        elif isinstance(node, ast.If) and not isinstance(node.test, ast.Compare):
            yield from mutant(node.test, "condition", f"(not ({ast.unparse(node.test)}))")

    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    mutants = {(m.begin, m.kind): m for function in functions for node in body_of(function) for m in of(node)}
    return sorted(mutants.values(), key=lambda mutant: mutant.begin)


def body_of(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes of a function's statements, without decorators, defaults and annotations."""
    for statement in function.body:
        yield from ast.walk(statement)


def drawn(count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, as many from each room as come out even: a file by its length, then any mutant in it."""
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    for number in range(count):
        room = ROOMS[number % len(ROOMS)]
        paths = sorted(path for path in (ROOT / room).rglob("*.py"))
        weights = [path.stat().st_size for path in paths]
        while True:
            path = rng.choices(paths, weights)[0]
            options = mutants_of(path.relative_to(ROOT).as_posix(), path.read_text())
            if options and (mutant := rng.choice(options)) not in chosen:
                chosen.append(mutant)
                break
    return chosen


def tests_for(mutant: Mutant) -> list[list[str]]:
    """Arguments of pytest's runs that could notice, in turn: tests that import the module, its room's, slow ones."""
    module = re.escape(mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    parent, _, name = module.rpartition(r"\.")
    imported = re.compile(rf"\b(?:{module}\b|from {parent} import (?:\([^)]*|[^\n]*)\b{name}\b)")
    tests = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
    direct = [path.relative_to(ROOT).as_posix() for path in tests if imported.search(path.read_text())]
    room = mutant.path.split("/")[0]
    folders = [folder for folder in (f"tests/unit/{room}", f"tests/contract/{room}") if (ROOT / folder).is_dir()]
    others = [*folders, *(f"--deselect={path}" for path in direct)]
    fast, slow = ["-m", "not slow and not prometheus"], ["-m", "slow and not prometheus"]
    return [*([[*direct, *fast]] if direct else []), [*others, *fast], [*direct, *folders, *slow]]


def caught(mutant: Mutant, copy: Path) -> bool:
    """Whether a test of ``copy`` that passes on the code as it is fails on the mutant."""
    path = copy / mutant.path
    source = path.read_bytes()
    for run in tests_for(mutant):
        while True:
            path.write_bytes(source[: mutant.begin] + mutant.text.encode() + source[mutant.end :])
            try:
                failed = first_failed(run, copy)
            finally:
                path.write_bytes(source)
            if failed is None:
                break
            if first_failed([failed] if failed else run, copy) is None:
                return True
            if not failed:  # the run hangs or breaks off without the mutant, too
                break
            run = [*run, f"--deselect={failed}"]  # what fails anyway notices nothing
    return False


def first_failed(tests: list[str], copy: Path) -> str | None:
    """The first test function that fails in a run of pytest in ``copy``; "" where it takes too long or breaks off."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            if process.wait(LONGEST_TESTS_S) in (0, 5):  # passed, or none was chosen
                return None
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        failure = re.search(rb"^(?:FAILED|ERROR) ([^\s\[]+)", output.read(), re.MULTILINE)
        return failure[1].decode() if failure else ""


@click.command(context_settings={"show_default": True})
@click.option("--seed", type=int, default=0, help="Which lines are broken.")
@click.option("--mutants", type=click.IntRange(1, 1000), default=30, help="How many.")
@click.option("--workers", type=click.IntRange(1, 64), default=2, help="Test runs at a time.")
@click.option("--only", type=int, multiple=True, help="Numbers of mutants to run. [default: all]")
def main(seed: int, mutants: int, workers: int, only: tuple[int, ...]) -> None:
    """Break lines one at a time and count how many the tests notice."""
    chosen = [(number, mutant) for number, mutant in enumerate(drawn(mutants, seed)) if not only or number in only]
    copies: SimpleQueue[Path] = SimpleQueue()
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for worker in range(workers):
            ignored = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".*_cache", "site")
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / str(worker), ignore=ignored)))

        def run(row: tuple[int, Mutant]) -> bool:
            copy = copies.get()
            try:
                noticed = caught(row[1], copy)
            finally:
                copies.put(copy)
            number, mutant = row
            state = "caught" if noticed else "MISSED"
            click.echo(f"{number:3} {state}  {mutant.kind:10} {mutant.path}:{mutant.line}  {mutant.text[:60]}")
            return noticed

        with ThreadPoolExecutor(workers) as pool:
            noticed = list(pool.map(run, chosen))
    missed = [asdict(mutant) for (_, mutant), was_noticed in zip(chosen, noticed, strict=True) if not was_noticed]
    click.echo(f"{sum(noticed)} of {len(noticed)} noticed in {time.monotonic() - begin_s:.0f} s")
    click.echo(json.dumps({"mutants": len(noticed), "caught": sum(noticed), "seed": seed, "missed": missed}))


if __name__ == "__main__":
    main()
