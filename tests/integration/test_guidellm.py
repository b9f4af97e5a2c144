"""vLLM's ``guidellm`` against a pipeline: as many requests, prompt and answer tokens as were asked for.

``make test-clients`` installs it. ``SMOE_GUIDELLM`` names the program where it is elsewhere (docs/generation.md).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.preset import byte_tokenizer
from moe.split import split
from tests.unit.moe import tiny

BESIDE = Path(sys.executable).with_name("guidellm")
GUIDELLM = os.environ.get("SMOE_GUIDELLM") or (str(BESIDE) if BESIDE.exists() else shutil.which("guidellm"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed (docs/generation.md)"),
]
REQUESTS, PROMPT, ANSWER = 6, 32, 8


def test_concurrent_streams_have_the_lengths_that_were_asked_for(tmp_path: Path) -> None:
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=2048, eos_token_id=299)
    checkpoint = tiny.store(model, tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    split(checkpoint, tmp_path / "tiny", "tiny", 4, None)
    out = tmp_path / "out.json"
    with LocalPipeline(tmp_path / "tiny", environ={"smoe_timeout": "120s"}) as pipeline:
        backend = f"kind=openai_http,target={pipeline.url},model=tiny,request_format=/v1/completions"
        asked = ["--backend", f"{backend},validate_backend=false", "--profile", "kind=concurrent,streams=2"]
        data = ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}"]
        counted = ["--tokenizer", f"kind=huggingface_auto,model={checkpoint}"]
        until = ["--constraint", f"kind=max_requests,count={REQUESTS}", "--disable-progress"]
        assert GUIDELLM is not None
        subprocess.run(
            [GUIDELLM, "run", *asked, *data, *counted, *until, "--output", f"kind=json,path={out}"],
            check=True, capture_output=True, text=True, timeout=800, cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        )  # fmt: skip
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    ended = benchmark["requests"]
    assert not ended["errored"] and len(ended["successful"]) == REQUESTS
    for one in ended["successful"]:
        assert one["output_tokens"] == ANSWER and one["prompt_tokens"] >= PROMPT
        assert one["time_to_first_token_ms"] > 0
