"""The sparse SmolLM2 through functions: what it writes is what the whole sparse model writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner

from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway_address
from moe.reference import WholeModel
from smoe import lifecycle
from smoe.cli import cli
from smoe.deployment import DeploymentSettings
from smoe.pipelines import ensure_pipeline
from tests.doubles.generation import generate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PROMPT, TOKENS = "Water boils at", 8


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a gateway that serves the preset on 15 functions, as many as OpenFaaS's community edition
    allows."""
    state = tmp_path_factory.mktemp("state")
    _, manifest = ensure_pipeline("smollm2", state / "pipelines")
    process = lifecycle.start_gateway(lifecycle.GatewaySettings(state, port=0, metrics_port=0), detach=False)
    settings = DeploymentSettings(max_functions=15)
    lifecycle.deploy_pipeline(GatewayClient.from_state(state), manifest, settings, timeout_s=600)
    yield state
    lifecycle.stop_process(process)


def test_functions_write_what_the_whole_sparse_model_writes(state: Path) -> None:
    client = openai.OpenAI(base_url=f"{read_gateway_address(state)}/v1", api_key="none", max_retries=0, timeout=600)
    model = WholeModel(state / "pipelines" / "smollm2")
    assert model.manifest.layers == 10 and model.manifest.router.top_k == 2
    answer = client.completions.create(model="smollm2", prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    assert answer.choices[0].text == generate(model, [PROMPT], TOKENS)[0].text


def test_chat_answers_in_words(state: Path) -> None:
    asked = ["chat", "smollm2", "--gateway", read_gateway_address(state), "--temperature", "0"]
    asked += ["--max-tokens", str(TOKENS)]
    chat = CliRunner().invoke(cli, asked, input="What is the capital of France?\n", catch_exceptions=False)
    assert chat.exit_code == 0 and "Paris" in chat.output
