"""``/v1/…``: the API that OpenAI's clients speak, in front of the generation loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import orjson

from functions.generation import answers, request
from functions.generation.answers import Form
from functions.generation.chat import ChatTemplate
from functions.generation.generator import Generator
from functions.generation.reader import Outbox, Piece, Reader, Writer
from functions.generation.request import Asked, FieldError
from functions.generation.sampling import Chosen, Sampler
from functions.generation.texts import Text, end_tokens
from functions.generation.token_texts import TokenTexts
from functions.generation.tokenising import Tokenising
from functions.wire.arrays import Arrays, as_float32
from functions.wire.errors import CallError
from functions.wire.messages import Reply, Request, both
from moe.errors import TextError
from moe.manifest import Manifest
from moe.tokenize import TextTokenizer

log = logging.getLogger(__name__)

Answer = Callable[[Reply], None]
Embed = Callable[[list[list[int]], Request], Awaitable[Arrays]]
"""One pass of an encoder over tokenised texts. Raises CallError."""
MOST_CHARACTERS = 2**20
"""In several texts together, at least; more where the context is long."""
_DECODERS = ("/v1/completions", "/v1/chat/completions")
_POSTS = (*_DECODERS, "/v1/embeddings")


class OpenAiApi:
    """Serves one model's ``/v1/…``."""

    def __init__(
        self,
        manifest: Manifest,
        tokenising: Tokenising,
        template: ChatTemplate | None,
        generator: Generator | None,
        embed: Embed,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``generator``: None where the model is no decoder."""
        self._manifest, self._tokenising, self._template = manifest, tokenising, template
        self._tokenizer = tokenising.tokenizer
        self._generator, self._embed, self._loop = generator, embed, loop
        self._created = int(time.time())
        numbers = manifest.architecture.get("decoder", manifest.architecture)
        self._longest, self._vocabulary = int(numbers["max_positions"]), int(numbers["vocab_size"])
        self._end = end_tokens(manifest)

    async def serve(self, sent: Request, answer: Answer) -> tuple[int, int]:
        """Answer a request; returns status and tokens for the ingress's own counters. Raises asyncio.CancelledError
        when the client leaves."""
        try:
            return await self._route(sent, answer)
        except CallError as error:
            answer(answers.error_answer(error))
            return error.status, 0

    async def _route(self, sent: Request, answer: Answer) -> tuple[int, int]:
        path, name = sent.path.rstrip("/"), self._manifest.name
        if sent.method == "GET" and path in ("/v1/models", f"/v1/models/{name}"):
            context = None if self._generator is None else await self._context(self._generator)
            model = answers.model_document(name, self._created, context)
            answer(Reply(200, (orjson.dumps({"object": "list", "data": [model]} if path == "/v1/models" else model),)))
            return 200, 0
        if sent.method != "POST" or path not in _POSTS:
            raise answers.not_served(sent.method, path, {"/v1/models": "GET"} | dict.fromkeys(_POSTS, "POST"))
        document = request.document_of(sent.body)
        if document.get("model", name) != name and str(document["model"]).split(".")[0] != name:  # NAME.NAMESPACE
            raise answers.model_not_found(document["model"], name)
        if path == "/v1/embeddings":
            return await self._embeddings(document, sent, answer)
        if self._generator is None:
            raise FieldError(f"{name} is no decoder ({self._manifest.task}): it writes no text", "model")
        chat = path == _DECODERS[1]
        asked = request.chat(document, self._longest) if chat else request.completion(document)
        return await self._texts(asked, sent, answer, self._generator, chat=chat)

    async def _context(self, generator: Generator) -> int:
        """The longest text that is taken: the model's context, where the segments keep as many tokens."""
        return min(self._longest, await generator.longest() or self._longest)

    async def _embeddings(self, document: request.Document, sent: Request, answer: Answer) -> tuple[int, int]:
        given, as_base64 = request.embedding(document)
        if self._manifest.task != "embedding":
            raise FieldError(f"{self._manifest.name} does {self._manifest.task}, it makes no embeddings", "model")
        ids = await self._ids(given, "input")
        vectors = as_float32((await self._embed(ids, sent))["embedding"])
        tokens = sum(map(len, ids))
        answer(Reply(200, (answers.embeddings_document(self._manifest.name, vectors, tokens, as_base64=as_base64),)))
        return 200, tokens

    async def _ids(self, given: list[str] | list[list[int]], field: str) -> list[list[int]]:
        """Raises FieldError."""
        texts = [one for one in given if isinstance(one, str)]
        together, most = sum(map(len, texts)), max(MOST_CHARACTERS, 32 * self._tokenizer.settings.max_tokens)
        if len(texts) > 1 and together > most:
            raise FieldError(f"the texts have {together} characters together; at most {most} are taken at once", field)
        ids = [one for one in given if not isinstance(one, str)]
        try:
            ids = await self._tokenising.ids(texts) if texts else ids
        except TextError as error:
            raise FieldError(str(error), field) from None
        for one in ids:
            if min(one) < 0 or max(one) >= self._vocabulary:
                raise FieldError(f"{field} has a token id outside 0 to {self._vocabulary - 1}", field)
        return ids

    async def _prompts(self, asked: Asked) -> list[list[int]]:
        """Token ids of all prompts, each with room for its new tokens. Raises FieldError, BadInputError."""
        if asked.messages is None:
            ids = await self._ids(asked.prompts, "prompt")
        elif self._template is None:
            message = (
                f"the checkpoint of {self._manifest.name} has no chat template; /v1/completions takes plain prompts"
            )
            raise FieldError(message, "messages", "no_chat_template")
        else:
            try:
                ids = [await self._tokenising.of_chat(asked.messages, self._template)]
            except TextError as error:
                raise FieldError(str(error), "messages", "context_length_exceeded") from None
        longest = max(map(len, ids))
        wanted = 1 if asked.max_tokens is None else asked.max_tokens
        if longest + wanted > self._longest:
            message = (
                f"this model's maximum context length is {self._longest} tokens; the prompt has {longest}, and "
                f"{wanted} are to be written"
            )
            raise FieldError(message, "messages" if asked.messages else "prompt", "context_length_exceeded")
        if any(token >= self._vocabulary for token in asked.sampling.logit_bias):
            raise FieldError(f"logit_bias has a token id outside 0 to {self._vocabulary - 1}", "logit_bias")
        return ids

    async def _texts(
        self, asked: Asked, sent: Request, answer: Answer, generator: Generator, *, chat: bool
    ) -> tuple[int, int]:
        prompts = await self._prompts(asked)
        writing = Writing(self._start(asked, prompts, sent, generator), prompts, asked, generator, self._tokenizer)
        befores = [() if asked.echo else prompt for prompt in prompts for _ in range(asked.n)]
        form = Form(
            self._manifest.name,
            sent.request_id[:64],
            [TokenTexts(self._tokenizer, before) for before in befores],
            chat=chat,
            logprobs=asked.logprobs is not None,
            routed=asked.routed,
        )
        sent.on_abandoned = both(writing.cancel, sent.on_abandoned)
        try:
            first = await writing.outbox.get()
            if first.error is not None:
                raise first.error
            if asked.stream:
                reply = Reply(200, content_type="text/event-stream", headers={"cache-control": "no-cache"})
                reply.stream = writing.events(first, form)
                reply.ended = writing.cancel
                answer(reply)
                await writing.over.wait()
            else:
                answer(Reply(200, (await writing.whole(first, form),)))
        except BaseException:
            writing.cancel()
            raise
        return 200, writing.tokens

    def _start(
        self, asked: Asked, prompts: list[list[int]], sent: Request, generator: Generator
    ) -> tuple[Outbox, list[Text]]:
        """All texts of a request on their way, or none. Raises OverloadedError."""
        outbox, now_s = Outbox(), self._loop.time()
        texts: list[Text] = []
        try:
            for prompt in prompts:
                for number in range(asked.n):
                    sampling = asked.sampling
                    if sampling.seed is not None:
                        sampling = replace(sampling, seed=sampling.seed + number)
                    reader = Reader(len(texts), outbox, Writer(self._tokenizer, prompt), asked.stops)
                    text = Text(
                        list(prompt),
                        self._longest - len(prompt) if asked.max_tokens is None else asked.max_tokens,
                        Sampler(sampling, asked.logprobs, prompt),
                        reader,
                        frozenset() if asked.ignore_eos else self._end,
                        sent.request_id,
                        self._longest,
                        now_s,
                        bounded=asked.max_tokens is not None,
                        deadline_s=sent.deadline_s,
                        prompt_logprobs=asked.logprobs if asked.echo else None,
                        routed=asked.routed,
                    )
                    generator.add(text)
                    texts.append(text)
        except BaseException:
            for text in texts:
                generator.cancel(text)
            raise
        return outbox, texts


class Writing:
    """A request's texts while they are written."""

    def __init__(
        self,
        started: tuple[Outbox, list[Text]],
        prompts: list[list[int]],
        asked: Asked,
        generator: Generator,
        tokenizer: TextTokenizer,
    ) -> None:
        self.outbox, self._texts = started
        self.over = asyncio.Event()
        """Set when nothing more will be sent."""
        self._asked, self._generator = asked, generator
        self._prompt_tokens = sum(map(len, prompts))
        self._echoes = [tokenizer.decode(prompt) if asked.echo else "" for prompt in prompts for _ in range(asked.n)]

    @property
    def tokens(self) -> int:
        """All that went through the pipeline for it."""
        return self.usage()["total_tokens"]

    def usage(self) -> dict[str, int]:
        written = sum(text.written for text in self._texts)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self._prompt_tokens + written,
        }

    def cancel(self) -> None:
        """Nobody reads any more; texts that are complete stay so."""
        for text in self._texts:
            self._generator.cancel(text)
        self.over.set()

    async def _pieces(self, first: Piece) -> AsyncIterator[Piece]:
        """Until every text has ended."""
        left, piece = len(self._texts), first
        while True:
            yield piece
            left -= piece.finish is not None or piece.error is not None
            if not left:
                return
            piece = await self.outbox.get()

    def _measure(self) -> None:
        self._generator.measures.most_written.observe(max(text.written for text in self._texts))

    async def whole(self, first: Piece, form: Form) -> bytes:
        """The answer with all texts. Raises CallError."""
        texts = list(self._echoes)
        chosen: list[list[Chosen]] = [[] for _ in texts]
        finishes: list[str | None] = [None] * len(texts)
        async for piece in self._pieces(first):
            if piece.error is not None:
                raise piece.error
            texts[piece.index] += piece.text
            chosen[piece.index] += piece.chosen
            finishes[piece.index] = piece.finish
        self._measure()
        choices = list(zip(texts, chosen, finishes, strict=True))
        return form.whole(choices, self.usage())

    async def events(self, first: Piece, form: Form) -> AsyncIterator[bytes]:
        """Server-sent events; a failure in the midst is an event with OpenAI's error object, and the last one."""
        begun: set[int] = set()
        async for piece in self._pieces(first):
            if piece.error is not None:
                error = piece.error
                yield answers.event(answers.error_document(error.status, str(error), None, error.code))
                self.over.set()
                return
            is_first = piece.index not in begun
            begun.add(piece.index)
            yield form.piece(
                piece.index,
                (self._echoes[piece.index] if is_first else "") + piece.text,
                piece.chosen,
                piece.finish,
                first=is_first,
                usage=self._asked.usage,
            )
        self._measure()
        if self._asked.usage:
            yield form.last(self.usage())
        yield answers.DONE
