"""``smoe invoke``: what of its options reaches the pipeline."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from smoe.commands import calling


class Client:
    """A gateway whose decoder answers with what it was asked."""

    asked: list[tuple[str, dict[str, Any]]]

    def __init__(self, task: str) -> None:
        self.task, self.asked = task, []

    def describe(self, name: str, timeout_s: float) -> dict[str, Any]:
        return {"task": self.task} if name in ("mine", "minilm") else {}

    def invoke(self, name: str, body: bytes, kind: str, timeout_s: float) -> Any:
        self.asked.append((name, json.loads(body)))

        class Reply:
            status_code, text = 200, "all of it"

            @staticmethod
            def json() -> dict[str, Any]:
                logits = {"logits": [[0.5, -1.0, 7.25]]} if "logits" in self.asked[-1][1] else {}
                return {"outputs": [{"text": "and so on"}]} | logits

        return Reply


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ([], {"max_new_tokens": 32}),
        (["--temperature", "0.8", "--top-k", "40", "--seed", "7"], {"temperature": 0.8, "top_k": 40, "seed": 7}),
        (["--temperature", "0"], {"temperature": 0.0}),
        (["--max-new-tokens", "5"], {"max_new_tokens": 5}),
    ],
)
@pytest.mark.parametrize("option", ["--pipeline", "--name"])
def test_a_decoder_s_sampling_is_asked_for_as_given(
    options: list[str], asked: dict[str, Any], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client("causal-lm")
    monkeypatch.setattr(calling.GatewayClient, "from_state", lambda state: client)
    done = CliRunner().invoke(calling.invoke, ["the cat", option, "mine", *options])
    assert (done.exit_code, done.stdout) == (0, "and so on\n")
    assert client.asked == [("mine", {"inputs": "the cat", "max_new_tokens": 32, **asked})]


@pytest.mark.parametrize(
    ("words", "standard_input", "name", "inputs"),
    [
        pytest.param(["the cat"], "", "minilm", "the cat", id="text-alone"),
        pytest.param(["mine", "the cat"], "", "mine", "the cat", id="pipeline-and-text"),
        pytest.param(["mine", "a", "b"], "", "mine", ["a", "b"], id="pipeline-and-batch"),
        pytest.param(["mine"], "one\n\ntwo\n", "mine", ["one", "two"], id="texts-on-standard-input"),
        pytest.param(["cats", "mine"], "", "minilm", ["cats", "mine"], id="batch-whose-first-is-no-pipeline"),
        pytest.param(["--pipeline", "other", "mine", "b"], "", "other", ["mine", "b"], id="option-makes-all-texts"),
    ],
)
def test_the_first_word_is_the_pipeline_where_one_is_called_so(
    words: list[str], standard_input: str, name: str, inputs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client("embedding")
    monkeypatch.setattr(calling.GatewayClient, "from_state", lambda state: client)
    done = CliRunner().invoke(calling.invoke, words, input=standard_input)
    assert done.exit_code == 0, done.output
    assert client.asked == [(name, {"inputs": inputs})]


@pytest.mark.parametrize("options", [["--temperature", "-1"], ["--top-k", "-1"], ["--seed", "x"]])
def test_sampling_beyond_what_the_api_takes_is_refused_before_anything_is_sent(options: list[str]) -> None:
    refused = CliRunner().invoke(calling.invoke, ["the cat", *options])
    assert refused.exit_code == 2 and options[0] in refused.output


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["and so on", "logits of the likeliest tokens: 2: +7.2500, 0: +0.5000, 1: -1.0000, … (3 numbers)"]),
        (["--json"], ["all of it"]),
    ],
)
def test_logits_are_asked_for_and_the_likeliest_shown_and_what_to_do_next_to_a_person(
    options: list[str], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, then = Client("causal-lm"), list[str]()
    monkeypatch.setattr(calling.GatewayClient, "from_state", lambda state: client)
    monkeypatch.setattr(calling, "print_next", then.append)
    done = CliRunner().invoke(calling.invoke, ["mine", "the cat", "--logits", *options])
    assert done.stdout.splitlines() == shown
    assert client.asked == [("mine", {"inputs": "the cat", "max_new_tokens": 32, "logits": True})]
    assert then == ([] if options else [calling.after_invoke("mine", "")])
