"""Finds retired words (docs/glossary.md) in names, docstrings, comments, help texts and pages, and public arrays whose
docstring states no axes. ``python -m tests.docs.words FOLDER…`` lists them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "autoscaler", "benchmarks", "evaluation", "functions", "gateway", "moe", "notebooks", "placement", "platform_words",
    "rl", "simulation", "smoe", "traces",
)  # fmt: skip
PAGES = ("README.md", "CHANGELOG.md", "docs", "deploy")
EXEMPT = frozenset({"docs/glossary.md"})
"""Names the retired words."""
STORED = frozenset({"wish", "beside", "plays"})
"""Stored columns, JSON fields and metric labels: as a string of its own, or between backquotes."""
TEST_TEXT = frozenset({("benchmarks/pipeline.py", "company")})
"""Words of synthetic sentences, which decide random draws."""
STORED_NAMES = frozenset({"volley_rounds", "quiet_cores", "lanes", "tell"})
"""Keys of stored settings of profiles and training runs, and a method of Optuna's."""
VARIABLES = frozenset({"found", "own", "known", "seen"})
"""Variables that name nothing."""
PARTS = re.compile(
    r"(?:^|_)(?:re)?(?:play(?:s|ed|er|ers)?(?<!replay)(?<!replays)(?<!replayed)|volleys?|wish(?:es|ed)?|told|tells?|"
    r"unlike|alike|anew|shelf|lanes?|lattice|(?:in|for|without|of) "
    r"company|quiet|quietest|dearest|dearer|own_pipelines?|own_options)(?:_|$)"
)
PROSE = re.compile(
    r"\b(?:play|plays|played|playing|volleys?|wish|wishes|wished|told|tells?|said|says|saying|anew|thereby|"
    r"throughout|beside|company|unlike (?:nodes|machines)|alike|lattice|shelf|one's own pipeline|"
    r"requests that meet|dear|dearer|dearest|as it comes)\b",
    re.IGNORECASE,
)
ARRAY = re.compile(r"\b(?:NDArray|Tensor|ndarray|Floats\d*|Ints\d*|Bools|FloatArray|IntArray)\b")
AXES = re.compile(r"\[[^\]]*\]|\bscalar\b", re.IGNORECASE)
TEXT = (
    r"(?i:[bfru]{1,2})?"
    r'(?:"{3}(?:\\.|[^\\])*?"{3}|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')'
)
"""A string, as a pattern."""
TOKEN = re.compile(rf"(?P<text>#[^\n]*|{TEXT})|\d[\w.]*|\.{{3}}|(?P<dot>\.\s*)?(?P<name>[^\W\d]\w*)", re.DOTALL)
"""Comments and strings, numbers, ``...``, names: what the standard library's tokenizer takes ten times as long for."""
BEGINS_WITH_OF = re.compile(r"[\"'](?:\\\n|\s)*Of ")


class Finding(NamedTuple):
    """One place to mend."""

    path: str
    line: int
    what: str


def of_source(path: str, text: str) -> Iterator[Finding]:
    """Findings of one Python file: retired names, retired words in comments and strings, docstrings that begin with
    "Of", public arrays without axes."""
    for token in TOKEN.finditer(text):
        name, prose = token["name"], token["text"]
        if name and (_is_retired(name) or (name in VARIABLES and not token["dot"])):
            yield Finding(path, 1 + text.count("\n", 0, token.start("name")), f"name {name}")
        elif prose and PROSE.search(prose):
            yield from _prose(path, 1 + text.count("\n", 0, token.start()), prose)
    if BEGINS_WITH_OF.search(text) or ARRAY.search(text):
        yield from _of_docstrings(path, ast.parse(text))


@cache
def _is_retired(name: str) -> bool:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return name not in STORED_NAMES and PARTS.search(snake) is not None


def of_page(path: str, text: str) -> Iterator[Finding]:
    """Findings of one page; code blocks are read too."""
    yield from _prose(path, 1, text)


def _prose(path: str, first_line: int, text: str) -> Iterator[Finding]:
    for match in PROSE.finditer(text):
        if (match[0] in STORED and _is_quoted_name(text, match)) or (path, match[0]) in TEST_TEXT:
            continue
        yield Finding(path, first_line + text.count("\n", 0, match.start()), f"word {match[0]}")


def _is_quoted_name(text: str, match: re.Match[str]) -> bool:
    line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    return text.strip("\"'") == match[0] or len(re.findall("`+", line)) % 2 == 1


def _of_docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if node.value.value.lstrip().startswith("Of "):
                yield Finding(path, node.lineno, "docstring begins with Of")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            annotations = [a.annotation for a in arguments if a.annotation] + ([node.returns] if node.returns else [])
            arrays = any(ARRAY.search(ast.unparse(annotation)) for annotation in annotations)
            documented = ast.get_docstring(node)
            if arrays and documented is not None and not AXES.search(documented):
                yield Finding(path, node.lineno, f"array without axes: {node.name}")


def findings(rooms: tuple[str, ...] = ROOMS) -> list[Finding]:
    """Every finding in the Python files of ``rooms`` and, for folders of pages, in their Markdown files."""
    out: list[Finding] = []
    for room in rooms:
        base = ROOT / room
        paths = [base] if base.is_file() else sorted(base.rglob("*"))
        for path in paths:
            relative = path.relative_to(ROOT).as_posix()
            if relative in EXEMPT:
                continue
            if path.suffix == ".py":
                out.extend(of_source(relative, path.read_text()))
            elif path.suffix == ".md":
                out.extend(of_page(relative, path.read_text()))
    return out


if __name__ == "__main__":
    listed = findings(tuple(sys.argv[1:]) or ROOMS)
    for finding in listed:
        print(f"{finding.path}:{finding.line}: {finding.what}")
    print(f"{len(listed)} findings")
