"""Tokens of every kind of decoder are those of recomputation: alone, and through worker processes with neighbours,
after preemption and after a worker's death; 512 of each with ``SMOE_TEST_ALL_512=1``."""

from __future__ import annotations

import http.client
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.harness.local_pipeline import LocalPipeline
from functions.serving.generation_metric_names import PREEMPTIONS, RECOMPUTED_TOKENS
from moe.reference import WholeModel, pack
from moe.split import split
from tests.unit.moe import tiny

pytestmark = pytest.mark.slow
TOKENS, FEWER, ALONE, KILL_AT, BRIEF = 512, 288, 32, 180, 160
LONG = ("llama", "mixtral-window", "gpt_oss", "deepseek_v3")
"""Each way to keep keys and values: all of them, a window, both by turns, compressed."""
EVERY = "SMOE_TEST_ALL_512" in os.environ
"""Whether 512 tokens of the other kinds are written, too, and not ``FEWER``: a minute more of CPU time."""
KEPT = 224
"""Numbers that a model keeps for a token: 1 MiB is full with a little more than two texts."""
POSITIONS: dict[str, Any] = {"max_position_embeddings": 1200}
ONE: dict[str, Any] = {**POSITIONS, "num_hidden_layers": 1, "head_dim": KEPT // 4}
TWO: dict[str, Any] = {**POSITIONS, "num_hidden_layers": 2, "head_dim": KEPT // 8}
LATENT = {**TWO, "head_dim": None, "kv_lora_rank": KEPT // 2 - 12, "qk_rope_head_dim": 12}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1, "n_positions": 1200, "n_embd": KEPT // 2},
    "mixtral": ONE,
    "olmoe": {**POSITIONS, "num_hidden_layers": 1, "hidden_size": KEPT, "num_key_value_heads": 2},
    "granitemoe": ONE,
    "phimoe": ONE,
    "gpt_oss": TWO,
    "qwen2_moe": {**TWO, "mlp_only_layers": [0]},
    "qwen3_moe": {**TWO, "mlp_only_layers": [0]},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}
"""Family → one layer with experts, and one without before it where the family can have that; otherwise ``TWO``."""


@pytest.fixture(scope="module", params=tiny.DECODERS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, folder = request.param.removesuffix("-window"), tmp_path_factory.mktemp(request.param)
    model = tiny.build(family, **{**SHAPES.get(family, TWO), **tiny.DECODERS[request.param]})
    checkpoint = tiny.store(model, folder / "checkpoint")
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(99)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(checkpoint / "tokenizer.json"))
    native = family in tiny.NATIVE
    layers = None if native or family == "gpt2" else [1]
    split(checkpoint, folder / "tiny", "tiny", 2, None if native else 1, layers=layers)
    return folder / "tiny"


@dataclass
class Written:
    """A text, and what is written to it."""

    prompt: list[int]
    tokens: int = TOKENS
    scored: bool = False
    """Whether the likeliest words of each place are asked for."""
    written: list[int] = field(default_factory=list)
    tops: list[dict[str, float]] = field(default_factory=list)

    def stream(self, address: str) -> Iterator[int]:
        """Send it; how many tokens there are, at each one that comes."""
        body = {"prompt": self.prompt, "max_tokens": self.tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        body |= {"logprobs": 20} if self.scored else {}
        with closing(http.client.HTTPConnection(address, timeout=600)) as connection:
            connection.request("POST", "/v1/completions", orjson.dumps(body))
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    document = orjson.loads(line[6:])
                    assert "error" not in document, document
                    (choice,) = document["choices"]
                    self.written += [int(word[1:]) for word in choice["text"].split()]
                    self.tops += choice["logprobs"]["top_logprobs"] if choice["logprobs"] else []
                    yield len(self.written)

    def check(self, model: WholeModel, tied: float = 0.0) -> None:
        """Each token is the likeliest after all before it, by one pass over the whole text with nothing kept; of some
        whose scores are no more than ``tied`` apart it may be any."""
        assert len(self.written) == self.tokens
        logits = self.recomputed(model)
        chosen = logits.gather(1, torch.tensor(self.written)[:, None])[:, 0]
        assert float((logits.max(-1).values - chosen).max()) <= tied
        if self.scored:
            words = torch.tensor([[int(word.strip()[1:]) for word in top] for top in self.tops])  # [tokens, 20]
            scores = torch.tensor([list(top.values()) for top in self.tops])
            close(torch.log_softmax(logits, -1).gather(1, words), scores)

    def recomputed(self, model: WholeModel) -> torch.Tensor:
        """Logits ``[tokens, vocab]`` of what was written."""
        return model.logits_ids([self.prompt + self.written[:-1]], all_tokens=True)[len(self.prompt) - 1 :]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= 1e-4


def counter(pipeline: LocalPipeline, name: str) -> float:
    """The ingress's, over its labels."""
    with urllib.request.urlopen(f"{pipeline.url}/metrics", timeout=100) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def room_of(address: str) -> int:
    """Tokens that a worker keeps."""
    with urllib.request.urlopen(f"http://{address}/kv", timeout=100) as reply:
        document = orjson.loads(reply.read())
    pages = min(node["pages"] for node in document["nodes"].values() if node["bytes_per_token"])
    return int(document["page_tokens"] * pages)


def tokens_of(directory: Path) -> int:
    return TOKENS if EVERY or directory.parent.name[:-1] in LONG else FEWER


def test_tokens_alone(directory: Path) -> None:
    model, text = WholeModel(directory), Written(tiny.texts((9,), seed=8)[0], tokens_of(directory))
    for segment in model.manifest.segments:
        model.programs[segment.id].open_cache(1 << 20)
    new, start, logits = text.prompt, 0, []
    while len(text.written) < text.tokens:
        place = {"sequences": torch.tensor([1]), "starts": torch.tensor([start]), "parents": torch.tensor([-1])}
        logits.append(model.forward(pack([new]) | place)["logits"])
        start += len(new)
        new = [int(logits[-1].argmax())]
        text.written += new
    text.check(model)
    close(torch.cat(logits), text.recomputed(model))


def test_tokens_with_neighbours_preempted_and_after_a_workers_death(directory: Path) -> None:
    tokens = tokens_of(directory)
    with (
        LocalPipeline(directory, max_functions=2, environ={"smoe_kv_mb": "1", "smoe_timeout": "600s"}) as served,
        ThreadPoolExecutor(3) as pool,
    ):
        (worker,) = served.workers
        room = room_of(worker.address)
        long = room // 2 - BRIEF
        first, *neighbours, last = tiny.texts((7, long, long, 11), seed=9)
        short = [Written(one, BRIEF) for one in neighbours]
        texts = [Written(first, tokens, scored=True), *short, Written(last, tokens)]
        streams = [text.stream(served.ingress.address) for text in texts]
        while next(streams[0]) < ALONE:
            pass
        for stream in streams[1:]:  # each after the one before, by fewer than 100 tokens; as all grow, one is preempted
            next(stream)
        reads = [pool.submit(list, stream) for stream in streams[1:]]
        while next(streams[0]) < KILL_AT:
            pass
        before = counter(served, RECOMPUTED_TOKENS)
        os.kill(worker.pid, signal.SIGKILL)
        assert counter(served, PREEMPTIONS) > 0
        served.start_again(worker)
        list(streams[0])
        for read in reads:
            read.result()
        assert counter(served, RECOMPUTED_TOKENS) >= before + KILL_AT
    model = WholeModel(directory)
    for text in texts:
        text.check(model, tied=1e-5)  # rounding depends on who else is in the batch
