"""What may be part of a stop text is held back, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from functions.generation.reader import StopFilter, Writer

LETTERS = st.text("ab", max_size=6)


def held_back(text: str, stops: list[str]) -> int:
    """Characters at the end of ``text`` that one of ``stops`` begins with, by trying all."""
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


@given(st.lists(LETTERS, max_size=12), st.lists(st.text("ab", min_size=1, max_size=7), max_size=3))
def test_pieces_go_out_up_to_what_a_stop_text_may_begin_with(pieces: list[str], stops: list[str]) -> None:
    passed, text, out = StopFilter(stops), "", ""
    for piece in pieces:
        text += piece
        more, stopped = passed.push(piece)
        out += more
        ends = [text.index(stop) for stop in stops if stop in text]
        assert stopped == bool(ends)
        if ends:
            assert out == text[: min(ends)]
            return
        assert out == text[: len(text) - held_back(text, stops)]
    assert out + passed.rest() == text


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=6), st.text(max_size=6), st.integers(0, 24))
def test_a_text_goes_on_within_a_character_that_the_prompt_had_begun(prompt: str, text: str, cut: int) -> None:
    """As after ``max_tokens``, when a client sends the ids that it has: nothing is lost, nothing comes twice."""
    every = (prompt + text).encode()
    cut = min(cut, len(every))
    writer = Writer(Bytes(), every[:cut])  # type: ignore[arg-type]
    came = "".join(writer.add(token) for token in every[cut:]) + writer.rest()
    whole = every[:cut].decode("utf-8", "ignore")
    assert whole + came == prompt + text
