"""What may be part of a stop text is held back, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.generation.reader import StopFilter

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
