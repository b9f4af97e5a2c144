"""The application of the ingress: JSON in, a pass over the pipeline, JSON out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import torch

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas
from functions.dispatch.resolvers import Resolver
from functions.generation.api import OpenAiApi
from functions.generation.chat import ChatTemplate
from functions.generation.gathered import write
from functions.generation.generator import Generator
from functions.generation.metrics import GenerationMetrics
from functions.generation.sampling import Sampling
from functions.generation.texts import end_tokens
from functions.generation.tokenising import Tokenising
from functions.ingress import api
from functions.ingress.bursts import BurstActivation, Gateway
from functions.ingress.calls import NodeCaller, PassContext
from functions.ingress.counts import Statistics
from functions.ingress.gated import GatedLayers
from functions.ingress.links import LinkMeter
from functions.ingress.packing import PassQueue
from functions.ingress.passes import PipelinePass
from functions.ingress.routes import LayerPlans, PlanRule
from functions.ingress.scatter import Scatter
from functions.serving.instruments import IngressInstruments
from functions.serving.settings import FunctionSettings, SettingsError
from functions.serving.token_bound import TokenBound
from functions.wire.arrays import Array, Arrays, as_float32
from functions.wire.errors import BadInputError, CallError, NotServedError
from functions.wire.messages import Reply, Request, error_reply, reply_of
from moe.errors import MoeError, TextError
from moe.grouping import Grouping, group
from moe.manifest import Manifest
from moe.reference import choose
from moe.tokenize import TextTokenizer

Texts = list[list[int]]
log = logging.getLogger(__name__)

CLIENT_GONE = 499
"""Status under which requests are counted whose client left before the answer; nobody reads it."""


class Ingress:
    """Serves the model's HTTP API on one event loop."""

    def __init__(
        self,
        manifest: Manifest,
        settings: FunctionSettings,
        loop: asyncio.AbstractEventLoop,
        tokenizer: TextTokenizer | None = None,
        tokens: TokenBound | None = None,
    ) -> None:
        """``tokenizer``: the pipeline's, where it is loaded already; ``tokens``: of all passes at once. Raises
        TextError, ManifestError, SettingsError."""
        if manifest.tokenizer is None:
            raise TextError(f"pipeline {manifest.name} has no tokenizer, so its ingress cannot take texts")
        self.manifest = manifest
        self.tokenizer = tokenizer or TextTokenizer(settings.pipeline_dir, manifest.tokenizer)
        self.tokenizer.encode("warm")
        self._tokenising = Tokenising(self.tokenizer)
        self.instruments = IngressInstruments(
            manifest.name,
            [node.id for node in manifest.nodes],
            manifest.layers,
            loop.time,
            own_node=settings.node,
            window_s=settings.statistics_window_s,
        )
        self.statistics = Statistics(self.instruments, loop)
        self._grouping = group(manifest, settings.max_functions)
        self.dispatcher, self._plans = dispatching(manifest, self._grouping, settings, loop)
        self.dispatcher.silence_s = settings.silence_s
        self._transfer, self._gate = settings.transfer, settings.gate
        self._caller_key = settings.caller_key()
        self._schedule = settings.schedule
        self._timeout_s = settings.timeout_s
        self._loop = loop
        self._bursts = self._burst_activation(settings)
        self._passes: PassQueue | None = None
        self._generator: Generator | None = None
        self._openai: OpenAiApi | None = None
        template = manifest.tokenizer.chat_template
        self._template = ChatTemplate(settings.pipeline_dir / template, self.tokenizer) if template else None
        self._limits = (settings.max_passes, settings.queue_limit, tokens or TokenBound(settings.max_tokens))
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: list[asyncio.Task[None]] = []

    def follow(self, resolver: Resolver) -> None:
        """Begin to keep the table of replicas current. Call on the running loop."""
        caller = NodeCaller(self.manifest, self._grouping, self.dispatcher, self.instruments)
        scatter = Scatter(self.manifest, caller, self.dispatcher, self.instruments, self._plans, self._transfer)
        gated = None
        if self._gate == "experts":
            gated = GatedLayers(self.manifest, self._grouping, self.dispatcher, self.instruments, self._plans)
        driver = PipelinePass(self.manifest, caller, scatter, self.instruments, gated)
        self._passes = PassQueue(driver.run, *self._limits)
        if self.manifest.task == "causal-lm":
            self._generator = Generator(
                self.manifest,
                caller,
                driver,
                self.dispatcher,
                queue_limit=self._limits[1],
                timeout_s=self._timeout_s,
                computed=self._computed,
                schedule=self._schedule,
            )
            self.instruments.expose(GenerationMetrics(self.manifest.name, self._generator))
            self.statistics.generation = self._generator.document
        self._openai = OpenAiApi(
            self.manifest, self._tokenising, self._template, self._generator, self._embed, self._loop
        )
        self._following = [self._loop.create_task(resolver.run(self._update))]
        if self._bursts is not None:
            self._following.append(self._loop.create_task(self._bursts.run()))
        if self._transfer == "adaptive":
            functions = dict.fromkeys(name for layer in _experts(self.manifest, self._grouping) for name in layer)
            meter = LinkMeter(list(functions), self.dispatcher, self.instruments.traffic, self._caller_key)
            self._following.append(self._loop.create_task(meter.run()))

    def close(self) -> None:
        """Stop following and close connections."""
        for task in self._following:
            task.cancel()
        self.statistics.close()
        if self._generator is not None:
            self._generator.close()
        if self._bursts is not None:
            self._bursts.close()
        self.dispatcher.close()

    def metrics(self) -> bytes:
        return self.instruments.text()

    def refused(self, status: int) -> None:
        """As of :class:`functions.wire.messages.Counting`."""
        self.instruments.finished(status, 0.0, 0)

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        if request.path == "/statistics" and request.method in ("GET", "HEAD"):
            answer(Reply(200, (self.statistics.document(),)))
        elif request.path.startswith("/v1/"):
            self._start(self._answer_openai(request, answer), request)
        elif request.path not in ("", "/"):
            message = f"there is no {request.method} {request.path}; there are /, /v1/… and /statistics"
            answer(error_reply(404, "not_found", message, platform=False))
        elif request.method in ("GET", "HEAD"):
            answer(Reply(200, (api.description(self.manifest),)))
        elif request.method != "POST":
            answer(error_reply(405, "method", "the model takes GET and POST", platform=False))
        else:
            self._start(self._answer(request, answer), request)

    def _start(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        request.on_abandoned = task.cancel

    async def _answer_openai(self, request: Request, answer: Callable[[Reply], None]) -> None:
        assert self._openai is not None, "follow() comes first"
        self.instruments.in_flight += 1
        status, tokens = CLIENT_GONE, 0
        try:
            status, tokens = await self._openai.serve(request, answer)
        except asyncio.CancelledError:
            if not request.abandoned:
                raise
            answer(error_reply(CLIENT_GONE, "abandoned", "the client is gone", platform=False))
        except Exception:
            log.exception("request %s failed", request.request_id)
            status = 500
            answer(error_reply(500, "internal", "the ingress failed; its log has the reason", platform=True))
        finally:
            self.instruments.in_flight -= 1
            self.instruments.finished(status, self._loop.time() - request.arrived_s, tokens)

    async def _embed(self, ids: Texts, request: Request) -> Arrays:
        """An encoder's pass for ``/v1/embeddings``. Raises CallError."""
        api.check_size(self.manifest, [len(text) for text in ids], self._limits[2].most)
        return await self._run(ids, None, self._context(request))

    def _context(self, request: Request) -> PassContext:
        limit_s = request.arrived_s + self._timeout_s
        return PassContext(
            request.request_id, limit_s if request.deadline_s is None else min(request.deadline_s, limit_s)
        )

    def _computed(self, tokens: int) -> None:
        """An iteration of the generation loop is done: its tokens count as a request's."""
        self.instruments.arrived(tokens)
        if self._bursts is not None:
            self._bursts.arrived(tokens)
            self._bursts.answered(tokens)

    async def _answer(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self.instruments.in_flight += 1
        tokens = 0
        try:
            body, tokens = await self._serve(request)
            reply = Reply(200, (body,))
        except CallError as error:
            reply = reply_of(error)
        except asyncio.CancelledError:
            if not request.abandoned:
                raise
            reply = error_reply(CLIENT_GONE, "abandoned", "the client is gone", platform=False)
        except Exception:
            log.exception("request %s failed", request.request_id)
            reply = error_reply(500, "internal", "the ingress failed; its log has the reason", platform=True)
        self.instruments.in_flight -= 1
        self.instruments.finished(reply.status, self._loop.time() - request.arrived_s, tokens)
        answer(reply)

    async def _serve(self, request: Request) -> tuple[bytes, int]:
        """Body of the answer and how many tokens went through the pipeline."""
        asked = api.parse(request.body, request.headers.get("content-type", ""), self.manifest.task)
        try:
            ids = await self._tokenising.ids(asked.texts)
        except MoeError as error:
            raise BadInputError(str(error)) from None
        lengths = [len(text) for text in ids]
        api.check_size(self.manifest, lengths, self._limits[2].most)
        context = self._context(request)
        if self.manifest.task == "embedding":
            reply = await self._run(ids, None, context)
            return api.embedding_answer(self.manifest.name, reply, lengths, asked.states), sum(lengths)
        if asked.max_new_tokens:
            outputs, first = await self._written(ids, asked, context)
            count = sum(lengths) + sum(len(output["token_ids"]) for output in outputs)
            return api.generation_answer(self.manifest.name, outputs, first, count), count
        reply = await self._run(ids, [[self._special("decoder_start")] for _ in ids], context)
        return api.logits_answer(self.manifest.name, reply["logits"], sum(lengths)), sum(lengths)

    async def _run(self, ids: Texts, answers: Texts | None, context: PassContext) -> Arrays:
        """One pass; ``answers`` are the decoder's tokens of an encoder-decoder."""
        assert self._passes is not None, "follow() comes first"
        answers = answers if self.manifest.task == "seq2seq-lm" else None
        tokens = sum(map(len, ids)) + sum(map(len, answers or ()))
        self.instruments.arrived(tokens)
        if self._bursts is None:
            return await self._passes.run(ids, answers, context)
        with self._bursts.serving(tokens):
            return await self._passes.run(ids, answers, context)

    def _update(self, table: Mapping[str, FunctionReplicas]) -> None:
        self.dispatcher.update(table if self._bursts is None else self._bursts.opened(table))
        if self._generator is not None:
            self._generator.changed()
        if self._bursts is not None:
            self._bursts.update(table)

    def _burst_activation(self, settings: FunctionSettings) -> BurstActivation | None:
        """None where no gateway's feed is followed: only that reports standbys and takes activations."""
        if not settings.feed_url:
            return None
        functions = [function.name for function in self._grouping.functions if not function.is_ingress]
        try:
            gateway = Gateway(settings.feed_url, settings.feed_token_file, settings.namespace)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        keeps_texts = self.manifest.task == "causal-lm"
        bursts = BurstActivation(functions, self.dispatcher, gateway, self._loop, sleepless=keeps_texts)
        self.statistics.openings = bursts.openings
        return bursts

    async def _written(
        self, ids: Texts, asked: api.ModelRequest, context: PassContext
    ) -> tuple[list[dict[str, Any]], Array | None]:
        """As ``_generate``, from kept keys and values where there are any."""
        if self._generator is None:
            return await self._generate(ids, asked, context)
        try:
            written = await write(
                self._generator,
                ids,
                max_tokens=asked.max_new_tokens,
                sampling=Sampling(asked.temperature, top_k=asked.top_k, seed=asked.seed),
                end=end_tokens(self.manifest),
                longest=int(self.manifest.architecture["max_positions"]),
                request_id=context.request_id,
                deadline_s=context.deadline_s,
            )
        except NotServedError as error:
            log.debug("texts are recomputed for every token: %s", error)
            return await self._generate(ids, asked, context)
        first = as_float32((await self._run(ids, None, context))["logits"]) if asked.logits else None
        return [
            {"text": self.tokenizer.decode(new), "token_ids": new, "finished": ended} for new, ended in written
        ], first

    async def _generate(
        self, ids: list[list[int]], asked: api.ModelRequest, context: PassContext
    ) -> tuple[list[dict[str, Any]], Array | None]:
        """Greedy or sampled tokens, the whole text recomputed for each, until the end token, ``max_new_tokens`` or the
        longest text. The same seed gives the same tokens, whatever else is in the batch.

        Also the logits ``[B, vocab]`` of each text's first new token, where asked for.
        """
        seq2seq = self.manifest.task == "seq2seq-lm"
        prefixes = [[self._special("decoder_start")] if seq2seq else list(text) for text in ids]
        longest = int(self.manifest.architecture.get("decoder", self.manifest.architecture)["max_positions"])
        generators = [torch.Generator().manual_seed(asked.seed) for _ in ids]
        added: list[list[int]] = [[] for _ in ids]
        finished = [False] * len(ids)
        first: Array | None = None
        ends = end_tokens(self.manifest)
        for _ in range(asked.max_new_tokens):
            running = [i for i in range(len(ids)) if not finished[i] and len(prefixes[i]) < longest]
            if asked.logits and first is None:
                running = list(range(len(ids)))  # logits of texts that are too long to go on, too
            if not running:
                break
            chosen = [prefixes[i] for i in running]
            reply = await self._run([ids[i] for i in running] if seq2seq else chosen, chosen, context)
            logits = as_float32(reply["logits"])
            if asked.logits and first is None:
                first = logits
            for row, i in enumerate(running):
                if len(prefixes[i]) >= longest:
                    continue
                token = choose(torch.from_numpy(logits[row]), asked.temperature, asked.top_k, generators[i])
                finished[i] = token in ends
                if not finished[i]:
                    prefixes[i].append(token)
                    added[i].append(token)
        outputs = [
            {"text": self.tokenizer.decode(new), "token_ids": new, "finished": done}
            for new, done in zip(added, finished, strict=True)
        ]
        return outputs, first

    def _special(self, role: str) -> int:
        tokenizer = self.manifest.tokenizer
        return 0 if tokenizer is None else tokenizer.special.get(role, 0)


def dispatching(
    manifest: Manifest, grouping: Grouping, settings: FunctionSettings, loop: asyncio.AbstractEventLoop
) -> tuple[Dispatcher, LayerPlans | None]:
    """What chooses replicas by ``smoe_dispatch``: call by call, and layer by layer where the rule does. Raises
    SettingsError."""
    rule = settings.dispatch
    if settings.gate == "experts" and (rule == "token-balanced" or settings.transfer != "direct"):
        raise SettingsError(
            f"smoe_gate is experts, smoe_dispatch {rule} and smoe_transfer {settings.transfer}; with that gate "
            "smoe_dispatch is not token-balanced and smoe_transfer is direct"
        )
    if rule in ("least-loaded", "local-first", "round-robin", "random"):
        return Dispatcher(loop, settings.queue_limit, rule, settings.node), None
    dispatcher = Dispatcher(loop, settings.queue_limit)
    whole: PlanRule = "token-balanced" if rule == "token-balanced" else "aebs"
    plans = LayerPlans(_experts(manifest, grouping), dispatcher, whole)
    if rule != "auto":
        plans.load()
    return dispatcher, plans


def _experts(manifest: Manifest, grouping: Grouping) -> list[list[str]]:
    """[layers][experts]: the function that serves each expert."""
    return [
        [grouping.function_of(node.id).name for node in manifest.experts(layer)] for layer in range(manifest.layers)
    ]
