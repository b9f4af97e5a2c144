"""Texts to send: real prompts out of a folder of public sets when it is there, else synthetic sentences built in here.

Known files (all optional): ``wikitext-2-valid.txt`` (paragraph lines; headings are left out),
``gsm8k_test_first_900.jsonl`` (question), ``bbh.jsonl`` (input), ``mt_bench_question.jsonl`` and
``vicuna_bench_question.jsonl`` (turns), ``HumanEval.jsonl.gz`` (prompt). Real texts are read only, never copied
into the project.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import NoMatchError, TraceError, broken
from traces.rows import read_lines

SYNTHETIC_SUBJECTS = (
    "The courier", "A retired teacher", "Our neighbour", "The night train", "The small bakery on the corner",
    "An engineer from the coast", "The library", "My sister", "The weather station", "A group of students",
    "The old bridge", "The new hospital wing",
)  # fmt: skip
SYNTHETIC_VERBS = (
    "asked about", "forgot", "wrote a long letter about", "measured", "explained", "repaired", "carefully compared",
    "could not find", "wanted to know more about", "quietly improved",
)  # fmt: skip
SYNTHETIC_OBJECTS = (
    "the price of fresh bread", "a broken water pump", "the results of the last election", "three unopened parcels",
    "how memory is shared between processes", "the shortest way to the harbour", "a recipe with lentils and lemon",
    "the difference between speed and velocity", "an unusually warm winter", "the timetable for next spring",
)  # fmt: skip
SYNTHETIC_ENDINGS = (
    ".", " before the rain began.", ", and nobody had expected that.", " because the first attempt had failed.",
    " while the children were still asleep.", ", which took most of the afternoon.",
)  # fmt: skip


@dataclass(frozen=True)
class PromptSet:
    """Texts and where they come from. ``texts`` is never empty."""

    texts: tuple[str, ...]
    source: str

    def choose(self, count: int, seed: int) -> list[str]:
        """``count`` texts drawn at random with replacement; the same seed gives the same list."""
        index = np.random.default_rng(seed).integers(0, len(self.texts), size=count)
        return [self.texts[i] for i in index.tolist()]


def load_prompts(folder: Path | None, max_words: int = 64, kinds: tuple[str, ...] = ()) -> PromptSet:
    """Texts of ``folder`` cut to ``max_words`` words; synthetic sentences when ``folder`` is None.

    ``kinds`` narrows to some of wikitext, gsm8k, bbh, mt_bench, vicuna, humaneval. Raises TraceError when the
    folder or a wanted kind is not there, or a file is damaged.
    """
    if max_words < 1:
        raise TraceError(f"a prompt has at least 1 word, got a limit of {max_words}")
    unknown = set(kinds) - set(READERS)
    if unknown:
        raise TraceError(f"unknown prompt sets {', '.join(sorted(unknown))}; known are {', '.join(READERS)}")
    if folder is None:
        return PromptSet(
            tuple(cut(text, max_words) for text in synthetic_sentences()),
            "synthetic sentences built into traces/prompts.py",
        )
    if not folder.is_dir():
        raise TraceError(f"the text folder {folder} does not exist")
    texts: list[str] = []
    used: list[str] = []
    for kind in kinds or tuple(READERS):
        name, reader = READERS[kind]
        path = folder / name
        if path.is_file():
            cut_texts = [cut(text, max_words) for text in reader(path) if text.split()]
            texts.extend(cut_texts)
            used.append(f"{name} ({len(cut_texts)})")
        elif kinds:
            raise NoMatchError(f"{path} is not there")
    if not texts:
        names = ", ".join(name for name, _ in READERS.values())
        raise NoMatchError(f"{folder} holds no known texts; known files are {names}")
    return PromptSet(tuple(texts), f"{folder.name}: {', '.join(used)}, cut to {max_words} words")


def cut(text: str, max_words: int) -> str:
    """The first ``max_words`` words, blanks made single."""
    return " ".join(text.split()[:max_words])


def synthetic_sentences() -> Iterator[str]:
    """A fixed set of 600 synthetic English sentences of one to three clauses."""
    rng = np.random.default_rng(0)
    for _ in range(600):
        clauses = int(rng.integers(1, 4))
        yield " ".join(_clause(rng) for _ in range(clauses))


def _clause(rng: np.random.Generator) -> str:
    parts = (SYNTHETIC_SUBJECTS, SYNTHETIC_VERBS, SYNTHETIC_OBJECTS, SYNTHETIC_ENDINGS)
    subject, verb, thing, ending = (_drawn(rng, words) for words in parts)
    return f"{subject} {verb} {thing}{ending}"


def _drawn(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]


def _wikitext(path: Path) -> Iterator[str]:
    for _, line in read_lines(path):
        text = line.strip()
        if text and not text.startswith("="):
            yield text


def _json_lines(path: Path, pull: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    for number, line in read_lines(path):
        if not line:
            continue
        try:
            text = pull(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise broken(
                path, number, f"not the JSON object this set holds ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(text, str):
            raise broken(path, number, f"the prompt is a {type(text).__name__}, a text is needed")
        yield text


READERS: dict[str, tuple[str, Callable[[Path], Iterator[str]]]] = {
    "wikitext": ("wikitext-2-valid.txt", _wikitext),
    "gsm8k": ("gsm8k_test_first_900.jsonl", lambda path: _json_lines(path, lambda item: item["question"])),
    "bbh": ("bbh.jsonl", lambda path: _json_lines(path, lambda item: item["input"])),
    "mt_bench": ("mt_bench_question.jsonl", lambda path: _json_lines(path, lambda item: item["turns"][0])),
    "vicuna": ("vicuna_bench_question.jsonl", lambda path: _json_lines(path, lambda item: item["turns"][0])),
    "humaneval": ("HumanEval.jsonl.gz", lambda path: _json_lines(path, lambda item: item["prompt"])),
}
