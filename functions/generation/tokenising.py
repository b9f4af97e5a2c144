"""Texts to token ids next to an event loop: long ones on a thread, so that streams go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from functions.generation.chat import ChatTemplate
from moe.tokenize import SHORT, TextTokenizer

MESSAGE = 64
"""Characters that a message takes as long as beyond its own, for what a template does and writes around them."""
Ids = list[list[int]]
Result = TypeVar("Result")


class Tokenising:
    """A pipeline's tokenizer for requests on one event loop. Long texts come one after the other: several at once would
    take the processors from the pipeline's own work."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenise")

    async def ids(self, texts: Sequence[str]) -> Ids:
        """Token ids of each text. Raises TextError that names the text by its index."""
        return await self._done(sum(map(len, texts)), lambda: self.tokenizer.encode_all(texts))

    async def of_chat(self, messages: list[dict[str, Any]], template: ChatTemplate) -> list[int]:
        """Token ids of messages as ``template`` renders them. Raises TextError, BadInputError."""
        characters = sum(MESSAGE + len(message["role"]) + len(message["content"]) for message in messages)
        return await self._done(characters, lambda: self.tokenizer.encode_rendered(template.render(messages)))

    async def _done(self, characters: int, work: Callable[[], Result]) -> Result:
        if characters <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
