"""Texts of decoders: what is trained on, and what perplexity is measured on, never both.

Measured are three files of the folder of prompts: an encyclopedia (wikitext-2-valid), school exercises with answers
(gsm8k) and code (HumanEval). Trained on are its other files (bbh, mt_bench, vicuna_bench), sources of Python's standard
library, and, where installed, the Debian packages wordnet-base, fortunes, dict-gcide, dict-foldoc and debian-handbook.
One document in ten of these is held out, to choose layers and settings with.
"""

from __future__ import annotations

import gzip
import html
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from moe.distil.texts import (
    SYSTEM,
    Document,
    articles,
    default_folder,
    divide,
    entries,
    fortunes,
    glosses,
    jsonl,
)
from moe.errors import TextError

SHARES: Mapping[str, float] = {
    "handbook": 0.14,
    "literature": 0.13,
    "computing": 0.08,
    "quotations": 0.09,
    "dictionary": 0.05,
    "tasks": 0.27,
    "chat": 0.02,
    "questions": 0.02,
    "code": 0.20,
}
"""Share of the tokens trained on, by kind; what is missing on a machine is made up by the others."""


def training_texts(
    folder: Path | None = None, system: Path = SYSTEM
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Texts to train on by kind, and held-out ones of the same kinds. Raises TextError where there is none."""
    documents_by_kind: dict[str, Iterable[Document]] = {"code": sources(Path(sysconfig.get_path("stdlib")))}
    given = folder if folder is not None else default_folder()
    if given is not None:
        for kind, (name, keys) in PROMPTS.items():
            if (given / name).is_file():
                documents_by_kind[kind] = jsonl(*keys)(given / name)
    for kind, (name, read) in PACKAGES.items():
        if (system / name).exists():
            documents_by_kind[kind] = read(system / name)
    training, held_out = {}, {}
    for kind, documents in documents_by_kind.items():
        training[kind], held_out[kind] = divide(documents, plain=kind != "code")
    if not training["code"]:
        raise TextError("There is nothing to train on: this Python has no sources, and no other texts were found.")
    return training, held_out


def measured_texts(folder: Path | None = None) -> dict[str, list[str]]:
    """Texts that perplexity is measured on, by kind. Raises TextError where a file is missing."""
    given = folder if folder is not None else default_folder()
    if given is None:
        raise TextError("Perplexity needs the folder of prompts: wikitext-2-valid.txt and others.")
    try:
        school = (json.loads(line) for line in _lines(given / "gsm8k_test_first_900.jsonl"))
        with gzip.open(given / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
            programs = [json.loads(line) for line in file]
        return {
            "encyclopedia": ["\n".join(texts) for _, texts in articles(given / "wikitext-2-valid.txt") if texts],
            "school": [f"{row['question']}\n{re.sub('<<[^>]*>>', '', row['answer'])}" for row in school],
            "code": [row["prompt"] + row["canonical_solution"] for row in programs],
        }
    except OSError as error:
        raise TextError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def blocks(texts: Sequence[str], tokenizer: Tokenizer, length: int, most: int, seed: int) -> Tensor:
    """``[B, length] int64``: texts in random order, one after another with the end-of-text token between them, cut
    into blocks of at most ``most`` tokens together. A text gives at most four blocks."""
    order, row = random.Random(seed).sample(list(texts), len(texts)), []
    end = tokenizer.token_to_id("<|endoftext|>")
    for text in order:
        row += [*tokenizer.encode(text[: 24 * length]).ids[: 4 * length], end]
        if len(row) >= most:
            break
    count = min(len(row), most) // length
    return torch.tensor(row[: count * length], dtype=torch.int64).view(count, length)


def mixed(texts: Mapping[str, Sequence[str]], tokenizer: Tokenizer, length: int, tokens: int, seed: int) -> Tensor:
    """``[B, length]``: about ``tokens`` tokens of all kinds in the proportions of SHARES, blocks in random order.

    Raises TextError where the texts do not fill one block.
    """
    counts = apportioned({kind: SHARES[kind] for kind, some in texts.items() if some}, tokens // length)
    parts = [blocks(texts[kind], tokenizer, length, count * length, seed) for kind, count in sorted(counts.items())]
    rows = torch.cat([torch.zeros(0, length, dtype=torch.int64), *parts])
    if not len(rows):
        raise TextError(
            f"There is too little text: {tokens} tokens were asked for, and what was found "
            f"({', '.join(sorted(texts))}) does not fill one block of {length}."
        )
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]


def apportioned(shares: Mapping[str, float], count: int) -> dict[str, int]:
    """``count`` divided in proportion to ``shares``, in whole numbers that add up to it (largest remainders)."""
    whole = sum(shares.values())
    exact = {kind: count * share / whole for kind, share in shares.items()}
    counts = {kind: int(value) for kind, value in exact.items()}
    rest = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], kind))
    for kind in rest[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts


def handbook(folder: Path) -> Iterable[Document]:
    """Debian's handbook in English, a page a document."""
    for path in sorted(folder.glob("*.html")):
        page = path.read_text(encoding="utf-8", errors="replace")
        paragraphs = re.findall(r"<div class=\"para\">(.*?)</div>", page, re.S)
        plain = [" ".join(html.unescape(re.sub(r"<[^>]+>", "", part)).split()) for part in paragraphs]
        yield path.name, ["\n".join(part for part in plain if len(part) > 60)]


def sources(folder: Path) -> Iterable[Document]:
    """Functions and classes of a folder's Python modules, as written."""
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield path.name, [part for part in re.split(r"\n(?=(?:def|class) )", text)[1:] if len(part) > 200]


PROMPTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tasks": ("bbh.jsonl", ("input",)),
    "chat": ("mt_bench_question.jsonl", ("turns",)),
    "questions": ("vicuna_bench_question.jsonl", ("turns",)),
}
PACKAGES = {
    "dictionary": ("wordnet", glosses),
    "quotations": ("games/fortunes", fortunes),
    "literature": ("dictd/gcide.dict.dz", entries),
    "computing": ("dictd/foldoc.dict.dz", entries),
    "handbook": ("doc/debian-handbook/html/en-US", handbook),
}
