"""Which application a function runs, from its settings; shared by the local worker and the Flask form.

What needs torch is imported where it is needed: a function that serves experts by NumPy never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from functions.dispatch.resolvers import FeedResolver, Resolver, TemplateResolver
from functions.serving import expert_nodes, limits
from functions.serving.relay import Relay
from functions.serving.server import ServerSettings
from functions.serving.settings import FunctionSettings, SettingsError
from functions.serving.token_bound import TokenBound
from functions.serving.weights import provide
from functions.wire.messages import Application
from moe.grouping import group
from moe.manifest import Manifest, Node, load
from platform_words.memory import (
    CALL_TOKENS,
    FORKED,
    INGRESS_BODY_BYTES,
    INGRESS_ROWS,
    MIB,
    RuntimeMemory,
    container_memory,
    tokens_that_fit,
)

if TYPE_CHECKING:
    from moe.tokenize import TextTokenizer

log = logging.getLogger(__name__)
SMALL_BODY_BYTES = 2 * 1024 * 1024
"""For what is no tensor of tokens: headers, tables of replicas, messages that measure a link."""


def build(
    settings: FunctionSettings,
    loop: asyncio.AbstractEventLoop,
    manifest: Manifest | None = None,
    tokenizer: TextTokenizer | None = None,
    bounds: ServerSettings | None = None,
    forked: bool = True,
) -> Application:
    """``manifest``, ``tokenizer``: the pipeline's, where they have been read already. ``bounds``: of the server, which
    then takes bodies of the application's size and drains while texts go on in it. ``forked``: this process shares its
    libraries with others, which its memory limit leaves out. Fetches a pipeline that is
    elsewhere; an ingress begins to follow its replicas. Call on the running loop. Raises SettingsError or
    ManifestError."""
    if settings.pipeline_address is not None:
        settings = provide(settings, prove=False)
    manifest = manifest or load(settings.pipeline_dir, verify=False, trusted=True)
    if bounds is not None:
        bound_bodies(bounds, manifest, settings)
    tokens = token_bound(manifest, settings, bounds, FORKED if forked else container_memory(manifest.dtype))
    if settings.is_ingress:
        from functions.ingress.handler import Ingress

        ingress = Ingress(manifest, settings, loop, tokenizer, tokens)
        ingress.follow(resolver_for(settings, manifest))
        _log_start(settings, manifest, f"texts of at most {_most_tokens(manifest)} tokens")
        return ingress
    application = relaying(_of_nodes(manifest, settings, loop, bounds, tokens), settings, loop, tokens)
    weights = sum(manifest.node(node).parameter_bytes for node in settings.nodes)
    _log_start(settings, manifest, f"{weights / MIB:.1f} MiB of weights on the {settings.device.kind}")
    return application


def _log_start(settings: FunctionSettings, manifest: Manifest, what: str) -> None:
    names = ", ".join(settings.nodes)
    log.info("%s of %s: %s, %s; %s", names, manifest.name, what, _slots(settings), limits.in_words())


def bound_bodies(bounds: ServerSettings, manifest: Manifest, settings: FunctionSettings) -> None:
    """Bodies of one call and of all together: of texts for an ingress, of ``smoe_max_tokens`` for other functions,
    whose memory holds each token twice (Eq. 2)."""
    if settings.is_ingress:
        bounds.max_body_bytes, bounds.max_held_bytes = INGRESS_BODY_BYTES, 8 * INGRESS_BODY_BYTES
    elif settings.max_tokens:
        nodes = [node for node in manifest.nodes if node.id in settings.nodes]
        came, both_ways = (
            settings.max_tokens * max((each(node) for node in nodes), default=0)
            for each in (_bytes_in, lambda node: 2 * (_bytes_in(node) + node.bytes_out_per_token))
        )
        bounds.max_body_bytes = min(ServerSettings.max_body_bytes, came + SMALL_BODY_BYTES)
        bounds.max_held_bytes = max(both_ways, bounds.max_body_bytes)


def token_bound(
    manifest: Manifest,
    settings: FunctionSettings,
    bounds: ServerSettings | None,
    runtime: RuntimeMemory,
    limit: Callable[[], int | None] | None = None,
) -> TokenBound:
    """``smoe_max_tokens``, and fewer where the memory limit has room for fewer, as Eq. (2) and deployments count it; no
    fewer than an ingress sends at once. ``bounds`` of bodies follow. ``limit`` reads the limit in bytes."""
    nodes = [node for node in manifest.nodes if node.id in settings.nodes]
    sized = settings.max_tokens
    if settings.device.kind != "cpu" or not (nodes or settings.is_ingress):
        return TokenBound(sized)
    if settings.is_ingress:
        rows = [node.bytes_in_per_token for node in manifest.nodes if node.kind == "expert"]
        fixed, each = runtime.ingress_mb * MIB, INGRESS_ROWS * max(rows, default=0)
    else:
        fixed = runtime.of(frozenset(node.kind for node in nodes)) * MIB + sum(node.parameter_bytes for node in nodes)
        each = 2 * max(node.bytes_in_per_token + node.bytes_out_per_token for node in nodes)
    keeps = manifest.task == "causal-lm" and any(node.kind == "segment" for node in nodes)
    kept, read = (settings.kv_mb * MIB if keeps else 0), limit or limits.memory_limit()
    least = max(CALL_TOKENS, manifest.tokenizer.max_tokens if manifest.tokenizer else 0)

    def fitting() -> int | None:
        limit_bytes = read()
        return None if limit_bytes is None else max(least, tokens_that_fit(limit_bytes - kept, fixed, each))

    def changed(most: int) -> None:
        if bounds is not None:
            bound_bodies(bounds, manifest, replace(settings, max_tokens=most))

    return TokenBound(sized, fitting, changed)


def _bytes_in(node: Node) -> int:
    """A token's, with the numbers of its text where each token is one: length, sequence, start, parent."""
    return node.bytes_in_per_token + 4 * 8


def _of_nodes(
    manifest: Manifest,
    settings: FunctionSettings,
    loop: asyncio.AbstractEventLoop,
    bounds: ServerSettings | None,
    tokens: TokenBound,
) -> Application:
    if settings.engine == "numpy" and expert_nodes.served(manifest, settings):
        return expert_nodes.expert_application(manifest, settings, loop, tokens)
    from functions.serving.nodes import node_application

    host = node_application(manifest, settings, loop, tokens)
    if bounds is not None:
        bounds.holds = host.holds
    return host


def _most_tokens(manifest: Manifest) -> str:
    return "any number of" if manifest.tokenizer is None else str(manifest.tokenizer.max_tokens)


def _slots(settings: FunctionSettings) -> str:
    return f"at most {settings.max_inflight} calls at once" if settings.max_inflight else "any number of calls at once"


def relaying(
    application: Application,
    settings: FunctionSettings,
    loop: asyncio.AbstractEventLoop,
    tokens: TokenBound | None = None,
) -> Application:
    """A worker's application, with the relaying stage where it serves experts."""
    if not any(node_id.startswith("expert-") for node_id in settings.nodes):
        return application
    return Relay(
        application, loop, settings.caller_key(), tokens or TokenBound(settings.max_tokens), settings.silence_s
    )


def resolver_for(settings: FunctionSettings, manifest: Manifest) -> Resolver:
    """The feed where the platform offers one, else the address template. Raises SettingsError."""
    if settings.feed_url:
        return FeedResolver(settings.feed_url, settings.feed_token_file, settings.namespace)
    if settings.address_template:
        names = [f.name for f in group(manifest, settings.max_functions).functions if not f.is_ingress]
        return TemplateResolver(settings.address_template, names, settings.caller_key())
    raise SettingsError("the ingress needs smoe_feed_url or smoe_address_template to find its functions")
