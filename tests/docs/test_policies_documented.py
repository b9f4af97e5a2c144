"""``docs/policies.md`` against the code: every policy by name, every setting with its default."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from autoscaler.policy.apa import ApaSettings
from autoscaler.policy.hpa import HpaSettings
from autoscaler.policy.janus import JanusSettings
from autoscaler.policy.keda import KedaSettings
from autoscaler.policy.kpa import KpaSettings
from autoscaler.policy.slo_aware import SloAwareSettings
from autoscaler.policy.token_load import TokenLoadSettings
from autoscaler.settings import POLICY_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
ELSEWHERE = {"min_replicas", "max_replicas", "kinds", "triggers", "classes", "slo_s", "ttft_s", "tpot_s"}


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_is_in_the_table_and_has_a_section(name: str) -> None:
    headings = [line for line in PAGE.splitlines() if line.startswith("## ")]
    assert f"\n| `{name}` |" in PAGE and any(name in heading for heading in headings)


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("hpa, openfaas, tuned-hpa", HpaSettings),
        ("kpa", KpaSettings),
        ("keda", KedaSettings),
        ("apa", ApaSettings),
        ("slo-aware", SloAwareSettings),
        ("elasticmoe", TokenLoadSettings),
        ("janus", JanusSettings),
    ],
)
def test_every_setting_is_listed_with_its_default_and_no_other(heading: str, settings: type) -> None:
    rows = [line.strip("|").split("|") for line in section(heading).splitlines() if line.startswith("| `")]
    listed = {cells[0].strip().strip("`"): cells[1].strip().strip("`") for cells in rows}
    listed = {name: default.replace('"', "") for name, default in listed.items() if "[[" not in name}
    known = {entry.name: str(entry.default) for entry in fields(settings) if entry.name not in ELSEWHERE}
    assert MISSING not in known.values() and listed == known
