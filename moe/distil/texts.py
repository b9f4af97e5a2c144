"""Texts to train and to measure with. No text is both: which side one is on depends on its document alone.

Training kinds come from a folder of public prompts (``--texts``: wikitext-2-valid, gsm8k, bbh, mt_bench,
vicuna_bench) and from Debian packages wordnet-base, fortunes and dict-gcide where installed; a few held-out
WordNet glosses ship with the package, so that measuring needs no such package. Two kinds are *foreign*, never
trained on: technical documentation (docstrings of Python's standard library, where this Python is) and
everyday sentences (the 720 Harvard sentences, IEEE 1969, as in the R package stringr, MIT).
"""

from __future__ import annotations

import ast
import functools
import gzip
import hashlib
import json
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moe.errors import TextError

SAMPLES = Path(__file__).parent / "samples"
PROJECT = Path(__file__).parents[2]
HELD_OUT = 10
"""One document in this many is kept for measuring."""
SYSTEM = Path("/usr/share")

Document = tuple[str, list[str]]
"""What decides the side (a title, a question), and the document's texts."""


@dataclass(frozen=True)
class Texts:
    """Texts by kind. ``foreign`` is only measured with; ``sources``: where each kind comes from."""

    training: Mapping[str, Sequence[str]]
    held_out: Mapping[str, Sequence[str]]
    foreign: Mapping[str, Sequence[str]]
    sources: Mapping[str, str]


def default_folder() -> Path | None:
    """The shared folder of prompts next to the project, where there is one."""
    folder = PROJECT.parent / "shared" / "traces" / "text"
    return folder if folder.is_dir() else None


def gather(folder: Path | None = None, system: Path = SYSTEM) -> Texts:
    """Everything found on this machine. ``folder`` None: the one next to the project, if any.

    Raises TextError where ``folder`` is given and holds none of the files known.
    """
    texts: dict[str, tuple[Iterable[Document], str]] = {}
    given = folder if folder is not None else default_folder()
    if given is not None:
        for kind, (name, read) in PROMPTS.items():
            if (given / name).is_file():
                texts[kind] = (read(given / name), name)
        if folder is not None and not texts:
            names = ", ".join(name for name, _ in PROMPTS.values())
            raise TextError(f"{folder}: none of the text files known is here ({names}).")
    for kind, (name, read) in PACKAGES.items():
        if (system / name).exists():
            texts[kind] = (read(system / name), f"{SYSTEM / name}")
    training: dict[str, list[str]] = {}
    held_out: dict[str, list[str]] = {}
    for kind, (documents, _) in texts.items():
        training[kind], held_out[kind] = divide(documents)
    sources = {kind: name for kind, (_, name) in texts.items()}
    if "dictionary" not in held_out:
        held_out["dictionary"] = read_lines(SAMPLES / "dictionary.txt")
        sources["dictionary"] = "samples/dictionary.txt"
    foreign = {"documentation": standard_library(), "everyday": read_lines(SAMPLES / "everyday.txt")}
    sources |= {"documentation": "Python standard library", "everyday": "samples/everyday.txt"}
    return Texts(training, held_out, foreign, sources)


def divide(documents: Iterable[Document], *, plain: bool = True) -> tuple[list[str], list[str]]:
    """Training and held-out texts; a text that occurs again is used once, on the side of its first document. ``plain``:
    white space is written as single blanks."""
    sides: tuple[list[str], list[str]] = ([], [])
    texts_before: set[str] = set()
    for title, texts in documents:
        side = sides[is_held_out(title)]
        for text in texts:
            taken = " ".join(text.split()) if plain else text
            if len(taken) >= 16 and taken not in texts_before:
                texts_before.add(taken)
                side.append(taken)
    return sides


def is_held_out(title: str) -> bool:
    """One document in HELD_OUT, by its title's hash: the same on every machine and day."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big") % HELD_OUT == 0


def read_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line]


def articles(path: Path) -> Iterable[Document]:
    """wikitext: paragraphs by article, its marks for spacing undone."""
    title = path.name
    paragraphs: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        heading = re.fullmatch(r" ?= ([^=].*[^=]) = ?", line)
        if heading:
            yield title, paragraphs
            title, paragraphs = heading[1], []
        elif len(line) > 60 and not line.startswith(" ="):
            plain = re.sub(r" @(.)@ ", r"\1", line).replace("<unk>", "something")
            paragraphs.append(re.sub(r" ([,.;:!?)'])", r"\1", plain))
    yield title, paragraphs


def jsonl(*keys: str) -> Callable[[Path], Iterable[Document]]:
    """Rows of JSON objects: one document each, of the texts (or lists of them) under ``keys``."""

    def read(path: Path) -> Iterable[Document]:
        for line in path.read_text(encoding="utf-8").splitlines():
            values = [json.loads(line)[key] for key in keys]
            texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
            yield texts[0], texts

    return read


def glosses(folder: Path) -> Iterable[Document]:
    """WordNet: definition and examples of each set of synonyms."""
    for path in sorted(folder.glob("data.*")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            _, bar, gloss = line.partition("|")
            if bar:
                yield gloss.strip(), [gloss]


def fortunes(folder: Path) -> Iterable[Document]:
    """Quotations and jokes. Collections about computers are left out: they border on documentation."""
    technical = {"computers", "linux", "linuxcookie", "debian", "perl", "knghtbrd", "ascii-art", "translate-me"}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.suffix and path.name not in technical:
            for text in re.split(r"\n%\n", path.read_text(encoding="utf-8", errors="replace")):
                yield text, [text]


def entries(path: Path) -> Iterable[Document]:
    """GCIDE (dictd form): entries with their quotations from literature."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        content = file.read()
    for entry in re.split(r"\n(?=\S)", content)[50:]:
        text = re.sub(r"\[[^\]]*\]|[{}]", "", entry)
        if len(text) > 60:
            yield text, [text]


PROMPTS: dict[str, tuple[str, Callable[[Path], Iterable[Document]]]] = {
    "encyclopedia": ("wikitext-2-valid.txt", articles),
    "school": ("gsm8k_test_first_900.jsonl", jsonl("question")),
    "tasks": ("bbh.jsonl", jsonl("input")),
    "chat": ("mt_bench_question.jsonl", jsonl("turns")),
    "questions": ("vicuna_bench_question.jsonl", jsonl("turns")),
}
"""Kind, file of the folder of prompts, reader. HumanEval is left out: its prompts are Python docstrings."""

PACKAGES: dict[str, tuple[str, Callable[[Path], Iterable[Document]]]] = {
    "dictionary": ("wordnet", glosses),
    "quotations": ("games/fortunes", fortunes),
    "literature": ("dictd/gcide.dict.dz", entries),
}
"""Kind, path below the system's share folder, reader."""


@functools.cache
def standard_library() -> tuple[str, ...]:
    """Docstrings of this Python's standard library."""
    return tuple(docstrings(Path(sysconfig.get_path("stdlib"))))


def docstrings(folder: Path) -> list[str]:
    """Docstrings of the folder's modules, their classes and functions, longer than a title."""
    texts: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text) >= 60:
                    texts[text] = None
    return list(texts)
