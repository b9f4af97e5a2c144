"""lm-eval's ``local-completions`` against a pipeline: its log-likelihoods are the whole model's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.preset import byte_tokenizer
from moe.reference import WholeModel
from moe.split import split
from tests.unit.moe import tiny

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.slow

TASK = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {data}}}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
QUESTIONS = [
    {"question": "The cat sat on the", "choices": ["mat", "dog", "tree house"], "answer": 0},
    {"question": "Grün means", "choices": ["green", "blue"], "answer": 0},
    {"question": "so" + " so" * 199, "choices": ["on", "off"], "answer": 1},
]


def test_log_likelihoods_of_a_local_task_are_the_whole_models(tmp_path: Path) -> None:
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=2048, eos_token_id=256)
    checkpoint = tiny.store(model, tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))
    split(checkpoint, tmp_path / "tiny", "tiny", 4, None)
    (tmp_path / "task").mkdir()
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "task" / "local.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    with LocalPipeline(tmp_path / "tiny", environ={"smoe_timeout": "60s"}) as pipeline:
        served = f"model=tiny,base_url={pipeline.url}/v1/completions,tokenizer={checkpoint}"
        options = ["--model_args", f"{served},tokenizer_backend=huggingface,max_length=2048,num_concurrent=2"]
        tasks = ["--tasks", "local_choice", "--include_path", str(tmp_path / "task"), "--batch_size", "4"]
        out = ["--log_samples", "--output_path", str(tmp_path / "out")]
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", *options, *tasks, *out]
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=600)
    whole = WholeModel(tmp_path / "tiny")
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == len(QUESTIONS)
    for line in lines:
        pairs = [(one["arg_0"], one["arg_1"]) for one in line["arguments"].values()]
        for (context, continuation), (response,) in zip(pairs, line["resps"], strict=True):
            before, ids = len(context.encode()), whole.tokenizer.encode(context + continuation)
            logs = torch.log_softmax(whole.logits_ids([ids], all_tokens=True)[:-1], -1)
            wanted = logs[range(len(logs)), ids[1:]][before - 1 :]
            assert float(response[0]) == pytest.approx(float(wanted.sum()), abs=1e-3)
            greedy = logs.argmax(-1)[before - 1 :].tolist() == ids[before:]
            assert str(response[1]) == str(greedy)
