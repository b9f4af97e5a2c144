"""Synthetic training texts: distillation needs no labels, so any text the teacher can read widens the student.

From real training texts come snippets of two texts joined, and texts in which words are dressed as the names,
calls, options and numbers that technical writing is full of. No technical documentation goes in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Dress = Callable[[list[str], random.Random], str]


def _number(rng: random.Random) -> str:
    values = (rng.randint(0, 9), rng.randint(10, 999), round(rng.random() * 10, 2), f"0x{rng.randint(16, 4095):x}")
    return str(rng.choice(values))


DRESSES: tuple[Dress, ...] = (
    lambda words, rng: "_".join(words),
    lambda words, rng: "".join(word.capitalize() for word in words),
    lambda words, rng: ".".join(words),
    lambda words, rng: f"{'_'.join(words)}()",
    lambda words, rng: f"{words[0]}({', '.join(words[1:])})",
    lambda words, rng: f"{words[0]}.{words[-1]}({', '.join(words[1:-1])})",
    lambda words, rng: f"{words[0]}={rng.choice((words[-1], _number(rng), 'None', 'True', 'False'))}",
    lambda words, rng: f"``{words[0]}``",
    lambda words, rng: f"`{'_'.join(words)}`",
    lambda words, rng: f"'{words[0]}'",
    lambda words, rng: f'"{" ".join(words)}"',
    lambda words, rng: f"--{'-'.join(words)}",
    lambda words, rng: f"-{words[0][0]}",
    lambda words, rng: f"<{words[0]}>",
    lambda words, rng: f"__{words[0]}__",
    lambda words, rng: f"[{', '.join(words)}]",
    lambda words, rng: f"{{{words[0]!r}: {_number(rng)}}}",
    lambda words, rng: f"{'/'.join(words)}.{words[0][:3]}",
    lambda words, rng: f">>> {words[0]} = {'.'.join(words[1:]) or _number(rng)}",
    lambda words, rng: _number(rng),
    lambda words, rng: "_".join(words).upper(),
    lambda words, rng: f":{words[0]}: {' '.join(words[1:])}",
)
"""Ways to write one to four plain words as a technical term."""


def dressed(text: str, vocabulary: Sequence[str], rng: random.Random) -> str:
    """``text`` with about a sixth of its words replaced by dressed words, its own or ``vocabulary``'s."""
    words = text.split()
    result = []
    for word in words:
        if rng.random() < 0.17:
            emphasised = [plain] if (plain := re.sub(r"\W", "", word)) and rng.random() < 0.5 else []
            chosen = emphasised + rng.choices(vocabulary, k=rng.randint(1, 3))
            result.append(rng.choice(DRESSES)(chosen, rng))
        result.append(word)
    return " ".join(result)


def joined(first: str, second: str, rng: random.Random) -> str:
    """Some words of one text, then some of another."""
    return " ".join(_some(first, rng) + _some(second, rng))


def _some(text: str, rng: random.Random) -> list[str]:
    words = text.split()
    count = rng.randint(1, min(len(words), 24))
    begin = rng.randint(0, len(words) - count)
    return words[begin : begin + count]


def mix(texts: Sequence[str], count: int, dressed_share: float, rng: random.Random) -> list[str]:
    """``count`` synthetic texts, ``dressed_share`` of them dressed, the rest joined."""
    vocabulary = [w for t in rng.choices(texts, k=2000) for w in re.findall(r"[a-z]{3,12}", t)]
    mixed = []
    for _ in range(count):
        first, second = rng.choice(texts), rng.choice(texts)
        plain = joined(first, second, rng) if rng.random() < 0.3 else first
        mixed.append(dressed(plain, vocabulary, rng) if rng.random() < dressed_share else joined(first, second, rng))
    return mixed
