"""A decoder behind a real gateway: OpenAI's client, ``smoe chat`` and ``smoe invoke``; nothing is kept after."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner

from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway_address
from moe.manifest import load
from moe.preset import byte_tokenizer
from moe.reference import WholeModel
from moe.split import split
from platform_words.headers import CALLER_KEY
from simulation.profiles.generation import storage
from smoe import lifecycle
from smoe.cli import cli
from smoe.deployment import DeploymentSettings
from tests.doubles.generation import generate
from tests.unit.moe import tiny
from traces.results import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a gateway that serves the decoder ``tiny``, of its ``pipelines`` folder."""
    state = tmp_path_factory.mktemp("state")
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=4096, eos_token_id=299)
    checkpoint = tiny.store(model, state / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    split(checkpoint, state / "pipelines" / "tiny", "tiny", 4, None)
    process = lifecycle.start_gateway(lifecycle.GatewaySettings(state, port=0, metrics_port=0), detach=False)
    client, manifest = GatewayClient.from_state(state), load(state / "pipelines" / "tiny")
    lifecycle.deploy_pipeline(client, manifest, DeploymentSettings(kv_mib=8), lambda ready: None)
    yield state
    lifecycle.stop_process(process)


def used_pages(state: Path) -> int:
    used, client = 0, GatewayClient.from_state(state)
    for name, replicas in client.replicas().items():
        headers = {CALLER_KEY: client.caller_key(name)}
        for replica in replicas if "segment" in name else ():
            request = urllib.request.Request(f"http://{replica['address']}/kv", headers=headers)
            with urllib.request.urlopen(request, timeout=100) as reply:
                used += sum(node["used_pages"] for node in json.load(reply)["nodes"].values())
    return used


def test_a_stream_through_the_gateway_is_the_whole_models_text_and_frees_its_pages(state: Path) -> None:
    client = openai.OpenAI(base_url=f"{read_gateway_address(state)}/v1", api_key="none", max_retries=0, timeout=300)
    assert [model.id for model in client.models.list()] == ["tiny"]
    wanted = generate(WholeModel(state / "pipelines" / "tiny"), ["abc"], 40)[0].text
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=40, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in stream) == wanted
    kept = used_pages(state)  # for texts that begin like this one
    assert kept > 0
    endless = client.completions.create(model="tiny", prompt="abc", max_tokens=4000, temperature=0, stream=True)
    next(iter(endless))  # and it comes long before the text is complete
    while used_pages(state) <= kept:
        time.sleep(0.05)
    endless.close()
    while used_pages(state) > kept:
        time.sleep(0.05)


def test_chat_and_invoke_print_text(state: Path) -> None:
    address = read_gateway_address(state)
    asked = ["chat", "tiny", "--gateway", address, "--temperature", "0", "--max-tokens", "6"]
    chat = CliRunner().invoke(cli, asked, input="hello\nagain\n", catch_exceptions=False)
    assert chat.exit_code == 0
    model = WholeModel(state / "pipelines" / "tiny")
    first = generate(model, ["user: hello\nassistant:"], 6)[0].text
    assert chat.output.startswith(first)
    invoked = CliRunner().invoke(cli, ["invoke", "--name", "tiny", "--gateway", address, "abc"], catch_exceptions=False)
    assert invoked.output == generate(model, ["abc"], 32)[0].text + "\n"
    logits = CliRunner().invoke(
        cli, ["invoke", "--name", "tiny", "--gateway", address, "--max-new-tokens", "0", "abc"], catch_exceptions=False
    )
    assert logits.output.startswith("logits of the likeliest tokens: ")


def test_a_token_trace_is_replayed_with_its_lengths(state: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,context_tokens,generated_tokens\n0,2000,40\n0.1,30,6\n0.2,90000,8\n")
    asked = ["replay", "tiny", "--state", str(state), "--trace", str(trace), "--timeout-s", "300", "--json"]
    options = ["--length-divisor", "2", "--ttft-ms", "300000", "--tpot-ms", "300000", "--out", str(tmp_path)]
    replayed = CliRunner().invoke(cli, [*asked, *options], catch_exceptions=False)
    assert replayed.exit_code == 0, replayed.output
    numbers = json.loads(replayed.stdout)["generation"]
    records = read_records(tmp_path / "requests.csv")
    assert numbers["context"] == 4096 and numbers["cut_to_context"] == 1 and numbers["ignore_eos"]
    assert [(one.prompt_tokens, one.max_tokens) for one in records] == [(1000, 20), (15, 3), (4092, 4)]
    assert numbers["goodput"] == 1 and numbers["ttft_s"]["p50"] > 0
    written = [one.tokens for one in records]
    assert numbers["output_tokens"] == sum(filter(None, written)) > 0
    early = sum(tokens is not None and tokens < asked for tokens, asked in zip(written, (20, 3, 4), strict=True))
    assert numbers["ended_early"] == early


def test_a_decoder_is_profiled_and_a_trace_simulated_on_it(state: Path, tmp_path: Path) -> None:
    profile, trace = str(tmp_path / "tiny.parquet"), tmp_path / "trace.csv"
    asked = ["lab", "profile", "tiny", "--state", str(state), "--quick", "--neighbour", "1", "--out", profile]
    profiled = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert profiled.exit_code == 0, profiled.output
    assert "next to a second instance, CPU time prefill next to prefill" in profiled.output
    slower = storage.load(Path(profile)).measured.slowdown
    assert len(slower) == 4 and all(1 <= one < 100 for one in slower)
    trace.write_text("arrival_s,context_tokens,generated_tokens\n0,2000,40\n0.1,30,6\n0.2,90000,8\n")
    asked = ["lab", "replay", profile, "--trace", str(trace), "--context", "4096", "--json"]
    for schedule in ("colocated", "deadline"):
        replayed = CliRunner().invoke(cli, [*asked, "--schedule", schedule], catch_exceptions=False)
        assert replayed.exit_code == 0, replayed.output
        numbers = json.loads(replayed.stdout)
        assert (numbers["lost"], numbers["output_tokens"]) == (0, 54) and numbers["tpot_s"]["p50"] > 0
