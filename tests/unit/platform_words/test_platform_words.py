"""Gateway and controller meet in these words: what either writes the other reads, and the text never changes."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform_words.live import Live
from platform_words.resources import QuantityError, parse_quantity, same_quantity
from tests.parameters import examples

amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from(["1", "2", "500m", "1Gi"])
)


@settings(max_examples=examples(50), deadline=None)
@given(amounts, amounts, st.integers(0, 99))
def test_live_settings_are_compact_sorted_json_that_is_read_back(limits: Any, requests: Any, inflight: int) -> None:
    live = Live(limits, requests, inflight)
    fields = {"limits": limits, "requests": requests, "max_inflight": inflight}
    assert live.text() == json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert live.settings() == json.dumps({"max_inflight": inflight}, separators=(",", ":"))
    assert Live.parse(live.text()) == live


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"limits": {}, "requests": {}, "max_inflight": "many"}'])
def test_a_text_that_is_no_live_settings_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Live.parse(text)


def test_requests_follow_limits_where_they_are_not_given() -> None:
    live = Live({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "3"}, {"cpu": "500m"}, 0)
    assert live.full_requests() == {"cpu": "500m", "memory": "1Gi"}
    assert not live.guaranteed
    assert Live({"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m"}, 0).guaranteed


def test_a_quantity_is_exact_and_the_same_however_it_is_written() -> None:
    assert parse_quantity("0.1") == Fraction(1, 10)
    assert same_quantity("1", "1000m") and same_quantity("1Gi", "1024Mi") and not same_quantity("1G", "1Gi")
    with pytest.raises(QuantityError, match="is not a Kubernetes quantity"):
        parse_quantity("5X")


def test_the_words_import_no_other_room() -> None:
    rooms = [path.name for path in Path(__file__).parents[3].iterdir() if (path / "__init__.py").is_file()]
    code = "import sys, platform_words.labels, platform_words.live, platform_words.resources; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} & set(rooms) == {"platform_words"}
