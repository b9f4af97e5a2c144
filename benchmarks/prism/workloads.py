"""Requests of different tasks for ``benchmarks.prism``, from real routing logs.

*DeepSeek-V2-Lite*: real tokens of real prompts. The log names no tasks, so tasks are clusters of prompts by what their
tokens chose in the first MoE layer, which is close to a function of the words themselves; all other layers are left as
they come. The last tokens of a prompt, a quarter and at most 20, are replayed as generated ones, a pass each; their
routing is the log's.

*OLMoE* and *Mixtral*: the logs count choices per text domain (a domain is a task) in three layers; tokens are drawn
from those counts independently, so the likeness of tokens within one prompt is lost. A layer takes the nearest logged
layer's shares with its experts renamed at random (the same for all domains). Lengths are those of the V2-Lite log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.placement.replay_log import Requests
from benchmarks.placement.synthetic_routing import REAL_EXPERTS, Choices, real
from traces.routing_logs import read_counts

COUNTS = "olmoe_mixtral_expert_counts.csv.gz"
GENERATED, LEAST_TOKENS = 20, 8
DOMAINS = ("arxiv", "github", "book")
TASKS = len(DOMAINS)


@dataclass(frozen=True, eq=False)
class Workload:
    """Prompts of several tasks: choices [tokens, layers, k] of each prompt, by task."""

    name: str
    experts: int
    prompts: list[list[Choices]]

    @property
    def layers(self) -> int:
        return int(self.prompts[0][0].shape[1])


def lite(folder: Path, seed: int, length: int | None = None) -> Workload:
    """Three clusters of the V2-Lite log's prompts, each in random order. ``length``: of prompts that have so many
    tokens the first ones only, so that clusters cannot differ in length."""
    from sklearn.cluster import KMeans

    choices, prompt = real(folder)
    numbers, starts, sizes = np.unique(prompt, return_index=True, return_counts=True)
    kept = np.flatnonzero(sizes >= (length or LEAST_TOKENS))
    if length is not None:
        sizes = np.full_like(sizes, length)
    words = np.zeros((len(numbers), REAL_EXPERTS))
    for number in kept:
        part = choices[starts[number] :][: sizes[number], 0]
        words[number] = np.bincount(part.ravel(), minlength=REAL_EXPERTS)
    likeness = np.sqrt(words[kept] / words[kept].sum(axis=1, keepdims=True))
    task = KMeans(TASKS, n_init=5, random_state=seed).fit_predict(likeness)
    order = np.random.default_rng(seed).permutation(len(kept))
    prompts = [[choices[starts[kept[i]] :][: sizes[kept[i]]] for i in order if task[i] == t] for t in range(TASKS)]
    return Workload("DeepSeek-V2-Lite", REAL_EXPERTS, prompts)


def drawn(folder: Path, model: str, layers: int, count: int, seed: int) -> Workload:
    """``count`` prompts of each domain for ``olmoe`` or ``mistral`` (Mixtral) with ``layers`` layers."""
    log = read_counts(folder / COUNTS, model)
    rng = np.random.default_rng(seed)
    _, prompt = real(folder)
    lengths = np.bincount(prompt)
    lengths = lengths[lengths >= LEAST_TOKENS]
    nearest = np.rint(np.linspace(0, log.layers - 1, layers)).astype(int)
    renamed = np.stack([rng.permutation(log.experts) for _ in range(layers)])
    prompts = []
    for domain in DOMAINS:
        shares = log.shares[log.window_names.index(domain)][nearest]
        of_domain = []
        for length in rng.choice(lengths, size=count):
            score = np.log(shares + 1e-12) + rng.gumbel(size=(int(length), layers, log.experts))
            chosen = np.argpartition(-score, log.top_k - 1, axis=2)[:, :, : log.top_k]
            of_domain.append(np.take_along_axis(renamed[None], chosen, axis=2))
        prompts.append(of_domain)
    return Workload({"olmoe": "OLMoE", "mistral": "Mixtral"}[model], log.experts, prompts)


def arrivals(nodes: int, count: int, mean_s: float, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Poisson arrivals of ``count`` requests at each node, mean gap ``mean_s``: times [requests], rising, and nodes
    [requests]."""
    gaps = np.random.default_rng(seed).exponential(mean_s, size=(nodes, count))
    times = gaps.cumsum(axis=1).ravel()
    order = np.argsort(times, kind="stable")
    return times[order], np.repeat(np.arange(nodes), count)[order]


def requests(times: NDArray[np.float64], node: NDArray[np.int64], prompts: list[Choices], experts: int) -> Requests:
    """Prompt i arrives at ``times[i]`` at ``node[i]``: one pass over its prompt, one for each generated token."""
    tokens, first, sizes, chosen, counts = [], [0], [], [], []
    for choices in prompts:
        generated = min(GENERATED, len(choices) // 4)
        prompt = len(choices) - generated
        cuts = [choices[:prompt], *(choices[at : at + 1] for at in range(prompt, len(choices)))]
        for cut in cuts:
            layers = cut.shape[1]
            cells = np.arange(layers) * experts
            occupied, count = np.unique((cut + cells[:, None]).ravel(), return_counts=True)
            sizes.append(np.bincount(occupied // experts, minlength=layers))
            chosen.append((occupied % experts).astype(np.int32))
            counts.append(count.astype(np.int32))
            tokens.append(len(cut))
        first.append(len(tokens))
    start = np.concatenate(([0], np.cumsum(np.concatenate(sizes))))
    columns = np.array(first), np.array(tokens), start, np.concatenate(chosen), np.concatenate(counts)
    return Requests(times, node, *columns)


def counted(prompts: list[list[Choices]], experts: int) -> NDArray[np.float64]:
    """[groups, layers, experts]: (token, expert) pairs of each group of prompts."""
    layers = prompts[0][0].shape[1]
    tokens = np.zeros((len(prompts), layers, experts))
    for group, of_task in enumerate(prompts):
        for choices in of_task:
            cells = (choices + np.arange(layers)[:, None] * experts).ravel()
            tokens[group] += np.bincount(cells, minlength=layers * experts).reshape(layers, experts)
    return tokens
