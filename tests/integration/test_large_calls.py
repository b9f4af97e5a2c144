"""Calls of more tokens than a function's memory is sized for, on a running gateway with real limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import requests
import torch

from functions.dispatch.resolvers import table_of
from functions.wire import format as wire
from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway, read_password
from moe.manifest import load
from moe.preset import byte_tokenizer
from moe.reference import WholeModel
from moe.split import split
from moe.tokenize import TextTokenizer
from smoe import lifecycle
from smoe.deployment import DeploymentSettings, function_deployments
from tests.unit.moe import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WORDS = ("cat", "dog", "sun", "tree", "sea")
TEXTS = [" ".join(WORDS[(i * 7 + j * j) % 5] for j in range(250)) for i in range(80)]
"""252 tokens each: together 2.5 times what a replica's memory is sized for."""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, minilm_pipeline: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    settings = lifecycle.GatewaySettings(folder, port=0, metrics_port=0, pipelines_dir=minilm_pipeline.parent)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("upstream_timeout", "300s")  # a busy machine takes more than the default of a minute
        process = lifecycle.start_gateway(settings, detach=False)
    deployment = DeploymentSettings(extra_environment={"smoe_timeout": "300s"})
    lifecycle.deploy_pipeline(GatewayClient.from_state(folder), load(minilm_pipeline), deployment)
    yield folder
    lifecycle.stop_process(process)


def ask(state: Path, texts: list[str]) -> requests.Response:
    headers = {"X-Timeout-Ms": "300000"}
    url = f"{read_gateway(state)['url']}/function/minilm"
    return requests.post(url, json={"inputs": texts}, headers=headers, timeout=400)


def replicas(state: Path) -> dict[str, set[str]]:
    """Ids of every function's replicas; one that is killed comes back under another."""
    url = f"{read_gateway(state)['url']}/system/replicas"
    document: Any = requests.get(url, auth=("admin", read_password(state)), timeout=60).json()
    return {
        name: {replica.id for replica in found.replicas} for name, found in table_of(document, "openfaas-fn").items()
    }


def test_callers_of_more_tokens_than_a_segment_has_memory_for_are_answered_and_nobody_is_killed(
    state: Path, minilm_pipeline: Path
) -> None:
    before = replicas(state)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: ask(state, TEXTS), range(2)))
    assert [reply.status_code for reply in replies] == [200] * 2, [reply.text[:200] for reply in replies]
    manifest = load(minilm_pipeline)
    assert manifest.tokenizer is not None
    ids = TextTokenizer(minilm_pipeline, manifest.tokenizer).encode_all(TEXTS)
    assert {len(text) for text in ids} == {252}
    whole = WholeModel(minilm_pipeline)
    for number in (0, 3, 4, 41, 79):  # first and last of parts, and others
        alone = whole.embed_ids([ids[number]])[0].numpy()
        for reply in replies:
            assert np.allclose(reply.json()["embeddings"][number], alone, atol=1e-5)
    assert replicas(state) == before


def test_callers_of_an_expert_wait_and_nobody_is_killed_after_its_memory_limit_was_lowered_live(tmp_path: Path) -> None:
    """Eight calls at once, as several ingresses send them. Its tokens take 16 KiB each by Eq. (2)."""
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 1, "vocab_size": 300}
    with patch.dict(tiny.BERT, wide):
        checkpoint = tiny.store(tiny.build("bert"), tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, tmp_path / "pipelines" / "wide", "wide", 2, 2)
    settings = lifecycle.GatewaySettings(
        tmp_path / "state", port=0, metrics_port=0, pipelines_dir=tmp_path / "pipelines"
    )
    process = lifecycle.start_gateway(settings, detach=False)
    try:
        with closing(GatewayClient.from_state(settings.state)) as client:
            manifest, name = load(tmp_path / "pipelines" / "wide"), "wide-expert-0-0"
            lifecycle.deploy_pipeline(client, manifest, DeploymentSettings())
            before = replicas(settings.state)
            sized, fewer = (
                next(one for one in function_deployments(manifest, deployment) if one["service"] == name)
                for deployment in (DeploymentSettings(), replace(DeploymentSettings(), peak_tokens=1024))
            )
            assert (sized["limits"]["memory"], fewer["limits"]["memory"]) == ("256Mi", "128Mi")
            assert client.deploy(sized | {"limits": fewer["limits"]}) == "updated"
            body = bytes(wire.encode_bytes({"x": torch.ones(1024, 1024)}))
            with ThreadPoolExecutor(8) as pool:
                replies = list(pool.map(lambda _: answer_of(settings.state, name, body), range(8)))
            assert [reply.status_code for reply in replies] == [200] * 8, [reply.content[:200] for reply in replies]
            assert replicas(settings.state) == before
    finally:
        lifecycle.stop_process(process)


def answer_of(state: Path, name: str, body: bytes) -> requests.Response:
    """The answer of a function; it is called again while it is busy (429), as ingresses do."""
    headers = {"Content-Type": wire.CONTENT_TYPE}
    while True:
        url = f"{read_gateway(state)['url']}/function/{name}"
        reply = requests.post(url, data=body, headers=headers, timeout=400)
        if reply.status_code != 429:
            return reply
        time.sleep(0.5)
