"""Clients that people own, against a pipeline: the whole model's text, whole and streamed.

Each is skipped where it is not installed; ``make test-clients`` installs them all in an environment of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.reference import WholeModel
from tests.doubles.generation import generate
from tests.unit.functions.test_generation import long  # noqa: F401

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NODE_MODULES = ROOT / ".venv" / "clients" / "node_modules"
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
TOKENS = 6


@pytest.fixture(scope="module")
def url(long: Path) -> Iterator[str]:  # noqa: F811
    with LocalPipeline(long, environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline.url


@pytest.fixture(scope="module")
def wanted(long: Path) -> str:  # noqa: F811
    return generate(WholeModel(long), ["user: hello\nassistant:"], TOKENS)[0].text


def test_huggingface_hubs_inference_client(url: str, wanted: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(base_url=f"{url}/v1", api_key="none")
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0}
    answer = client.chat_completion(MESSAGES, logprobs=True, top_logprobs=2, **asked)
    assert answer.choices[0].message.content == wanted
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content) == TOKENS
    pieces = client.chat_completion(MESSAGES, stream=True, **asked)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == wanted


@pytest.mark.filterwarnings("ignore")
def test_langchain(url: str, wanted: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    common: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "model": "tiny", "temperature": 0}
    chat = langchain.ChatOpenAI(max_tokens=TOKENS, max_retries=0, **common)
    answer = chat.invoke("hello")
    assert answer.content == wanted
    assert answer.usage_metadata["output_tokens"] == TOKENS
    assert "".join(piece.content for piece in chat.stream("hello")) == wanted
    assert [one.content for one in chat.batch(["hello", "hello"])] == [wanted, wanted]
    text = langchain.OpenAI(max_tokens=TOKENS, max_retries=0, **common)
    assert text.invoke("user: hello\nassistant:") == wanted
    with pytest.raises(Exception, match="response_format"):
        chat.with_structured_output({"title": "a", "type": "object", "properties": {}}).invoke("hello")


@pytest.mark.filterwarnings("ignore")
def test_litellm(url: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    common: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": TOKENS, "temperature": 0}
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.completion(model=f"{provider}/tiny", messages=MESSAGES, **common)
        assert answer.choices[0].message.content == wanted
        assert answer.usage.completion_tokens == TOKENS
    pieces = litellm.completion(model="openai/tiny", messages=MESSAGES, stream=True, **common)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == wanted
    prompt = "user: hello\nassistant:"
    text = litellm.text_completion(model="text-completion-openai/tiny", prompt=prompt, logprobs=1, **common)
    assert text.choices[0].text == wanted


@pytest.mark.skipif(shutil.which("node") is None or not NODE_MODULES.is_dir(), reason="no node, or no packages")
def test_npms_openai_and_ai(url: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    script = shutil.copy(Path(__file__).with_name("openai_clients.mjs"), tmp_path)
    command = ["node", str(script), f"{url}/v1", "tiny"]
    ran = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300)
    told = json.loads(ran.stdout)
    assert {told[name] for name in ("whole", "streamed", "generated", "pieces")} == {wanted}
    assert (told["usage"], told["generatedTokens"], told["finish"]) == (TOKENS, TOKENS, "length")
    assert told["wrong"] == [404, "model_not_found"]
