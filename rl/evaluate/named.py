"""Policies of this package by a short name in evaluations; in the controller they go by ``MODULE:MAKER``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoscaler.settings import SHORT_NAMES, is_policy


@dataclass(frozen=True)
class Named:
    """A policy that is not the controller's own."""

    maker: str
    """``MODULE:MAKER``."""
    learnt: Path | None = None
    """Folder of what it has learnt, ``WORKLOAD.safetensors``; the file is part of a run's fingerprint."""


NAMED: Mapping[str, Named] = {
    "last-window": Named("rl.bound.last_window:make"),
    "faasconf": Named("rl.faasconf.policy:make", Path(__file__).parents[1] / "faasconf" / "weights"),
}
NAMES = (*SHORT_NAMES, *NAMED)


def is_known(policy: str) -> bool:
    """Whether an evaluation can play a policy of this name."""
    return policy in NAMED or is_policy(policy)


def maker_of(policy: str) -> str:
    """What the controller calls the policy."""
    return NAMED[policy].maker if policy in NAMED else policy


def learnt_file(policy: str, workload: str) -> Path | None:
    """What the policy has learnt for a workload, else for one of its family (``bert-4`` for ``bert-8``)."""
    folder = NAMED[policy].learnt if policy in NAMED else None
    if folder is None:
        return None
    own, family = folder / f"{workload}.safetensors", workload.partition("-")[0]
    return own if own.is_file() else next(iter(sorted(folder.glob(f"{family}-*.safetensors"))), None)
