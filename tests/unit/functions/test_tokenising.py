"""Long texts are tokenised next to an event loop that goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from functions.generation.tokenising import MESSAGE, Tokenising
from moe.errors import TextError
from moe.manifest import Tokenizer
from moe.preset import byte_tokenizer
from moe.tokenize import SHORT, TOKENIZER_FILE, TextTokenizer

LONG = "x" * (SHORT + 1)


class Slow:
    """A tokenizer that takes until ``go`` for long texts; a token is a text's length."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.at_once = self.most_at_once = 0

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        if sum(map(len, texts)) > SHORT:
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
            assert self.go.wait(30.0)
            self.at_once -= 1
        return [[len(text)] for text in texts]

    def encode_rendered(self, text: str) -> list[int]:
        raise TextError(f"{len(text)} characters on {threading.current_thread().name}")


class Template:
    def render(self, messages: list[dict[str, str]]) -> str:
        return "".join(message["content"] for message in messages)


def test_short_texts_do_not_wait_for_long_ones_which_come_one_after_the_other() -> None:
    slow = Slow()

    async def story() -> list[list[list[int]]]:
        tokenising = Tokenising(slow)  # type: ignore[arg-type]
        long = [asyncio.create_task(tokenising.ids(texts)) for texts in ([LONG], [LONG[1:], "yz"])]
        await asyncio.sleep(0)
        assert await tokenising.ids(["short", "one"]) == [[5], [3]]
        assert not any(task.done() for task in long)
        slow.go.set()
        return await asyncio.gather(*long)

    assert asyncio.run(story()) == [[[SHORT + 1]], [[SHORT], [2]]]
    assert slow.most_at_once == 1


@pytest.mark.parametrize("characters", [SHORT, SHORT + 1])
def test_a_conversations_error_comes_back_from_the_thread_that_long_ones_are_rendered_on(characters: int) -> None:
    messages = [{"role": "user", "content": "x" * (characters - MESSAGE - len("user"))}]
    tokenising = Tokenising(Slow())  # type: ignore[arg-type]
    thread = "tokenise" if characters > SHORT else "MainThread"
    with pytest.raises(TextError, match=f"^{characters - MESSAGE - 4} characters on {thread}"):
        asyncio.run(tokenising.of_chat(messages, Template()))  # type: ignore[arg-type]


def test_many_messages_without_a_character_do_not_keep_others_waiting() -> None:
    tokenising = Tokenising(Slow())  # type: ignore[arg-type]
    with pytest.raises(TextError, match=r"^0 characters on tokenise"):
        asyncio.run(tokenising.of_chat([{"role": "", "content": ""}] * 1000, Template()))  # type: ignore[arg-type]


def test_a_long_text_has_the_tokens_of_its_parts(tmp_path: Path) -> None:
    byte_tokenizer(256).save(str(tmp_path / TOKENIZER_FILE))
    tokenizer = TextTokenizer(tmp_path, Tokenizer(TOKENIZER_FILE, 10 * SHORT))
    parts = ["ab" * (SHORT // 2), "cd" * (SHORT // 2)]
    first, second = (tokenizer.encode_rendered(part) for part in parts)
    assert tokenizer.encode_rendered("".join(parts)) == first + second
    special = len(tokenizer.encode("ab")) - len(tokenizer.encode_rendered("ab"))
    assert len(tokenizer.encode("".join(parts))) == len(first + second) + special
