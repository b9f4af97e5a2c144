"""Choice of tokens: every option, reproducibly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from functions.generation.sampling import Sampler, Sampling


def test_the_sampler_follows_every_option() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, 1.0])
    draws = [Sampler(Sampling(temperature=1.0, top_k=2, seed=seed)).choose(logits).token for seed in range(60)]
    assert set(draws) == {1, 2}
    draws = [Sampler(Sampling(temperature=1.0, top_p=0.6, seed=seed)).choose(logits).token for seed in range(60)]
    assert set(draws) == {1}
    assert Sampler(Sampling(logit_bias={3: 5.0})).choose(logits).token == 3
    assert Sampler(Sampling(logit_bias={1: -100.0})).choose(logits).token == 2
    greedy = Sampler(Sampling(frequency_penalty=0.6))
    assert [greedy.choose(logits).token for _ in range(4)] == [1, 1, 2, 1]  # 3, 2.4, then 1.8 < 2, then 1.8 > 1.4
    greedy = Sampler(Sampling(presence_penalty=1.5))
    assert [greedy.choose(logits).token for _ in range(3)] == [1, 2, 1]
    chosen = Sampler(Sampling(), logprobs=2).choose(logits)
    wanted = torch.log_softmax(logits, -1)
    assert chosen.logprob == pytest.approx(float(wanted[1]))
    assert [token for token, _ in chosen.top] == [1, 2]
    assert np.isclose(chosen.top[1][1], float(wanted[2]))
    unseeded = {tuple(_ten(Sampler(Sampling(temperature=5.0)), logits)) for _ in range(8)}
    assert len(unseeded) > 1


def test_repetitions_of_the_prompt_and_of_the_text_are_penalised_as_transformers_does() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    theirs, prompt, logits = RepetitionPenaltyLogitsProcessor(1.4), [1, 4, 4], torch.tensor([0.9, 3.0, 2.5, -0.5, -0.4])
    sampler, tokens = Sampler(Sampling(repetition_penalty=1.4), 5, prompt), list(prompt)
    assert not sampler.greedy
    for _ in range(4):
        scores = theirs(torch.tensor([tokens]), logits[None])[0]
        chosen = sampler.choose(logits)
        assert chosen.token == int(scores.argmax())
        assert [dict(chosen.top)[token] for token in range(5)] == pytest.approx(torch.log_softmax(scores, -1).tolist())
        tokens.append(chosen.token)
    assert tokens[3:] == [2, 1, 1, 1]


def test_biases_come_before_repetition_penalties_and_those_before_the_others_as_in_vllm() -> None:
    asked = Sampling(logit_bias={1: 2.0}, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    sampler = Sampler(asked, 2)
    assert sampler.choose(torch.tensor([0.0, 4.0])).token == 1
    chosen = sampler.choose(torch.tensor([0.0, 4.0]))
    assert chosen.logprob == pytest.approx(-math.log1p(math.exp(-((4 + 2) / 2 - 0.5 - 0.25))))


def test_the_smallest_temperature_takes_the_largest_logit() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, -torch.inf])
    assert set(_ten(Sampler(Sampling(temperature=1e-40, seed=1)), logits)) == {1}


def _ten(sampler: Sampler, logits: torch.Tensor) -> list[int]:
    return [sampler.choose(logits).token for _ in range(10)]
