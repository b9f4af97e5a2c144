"""Reading answers of Prometheus: whatever way they are written, they say what their JSON says."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.monitor.answers import Rows, untimed
from autoscaler.state.readings import LARGEST

TIME = 1763750000.125
ODD = ["NaN", "+Inf", "-Inf", "0", "1e9"]
NUMBERS = st.floats(allow_nan=True, allow_infinity=True).map(repr) | st.sampled_from(ODD)
TEXTS = st.text(max_size=8) | st.sampled_from(['"]},{"metric":', ',"value":[1,"', '"]}]}', "\n", "\\"])
METRICS = st.dictionaries(st.sampled_from(["pipeline", "node", "le"]), TEXTS)
VECTORS = st.lists(st.tuples(METRICS, NUMBERS), max_size=6)


def body(rows: list[tuple[dict[str, str], str]], compact: bool = True, time_s: float = TIME) -> bytes:
    """As Prometheus writes an answer, or as another server might."""
    result = [{"metric": metric, "value": [time_s, number]} for metric, number in rows]
    document = {"status": "success", "data": {"resultType": "vector", "result": result}, "infos": ["a"]}
    return orjson.dumps(document) if compact else json.dumps(document, indent=1).encode()


def plainly(rows: list[tuple[dict[str, str], str]], labels: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """What the rows say, one after the other."""
    return {
        tuple(metric.get(label, "") for label in labels): float(number)
        for metric, number in rows
        if 0.0 <= float(number) < LARGEST
    }


@pytest.mark.slow
@given(st.lists(VECTORS, min_size=1, max_size=3), st.booleans())
@pytest.mark.parametrize("labels", [(), ("node",), ("pipeline", "node"), ("pipeline", "node", "le")])
def test_one_answer_after_the_other_says_what_its_json_says(
    labels: tuple[str, ...], answers: list[list[tuple[dict[str, str], str]]], compact: bool
) -> None:
    rows = Rows(labels)
    for answer in answers:
        assert rows.read(body(answer, compact)) == plainly(answer, labels)


def test_labels_that_come_again_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, parsed = Rows(("node",)), list[Any]()
    monkeypatch.setattr("autoscaler.monitor.answers.orjson.loads", lambda data: parsed.append(data) or json.loads(data))
    assert rows.read(body([({"node": "a"}, "1"), ({"node": "b"}, "2")])) == {("a",): 1.0, ("b",): 2.0}
    assert rows.read(body([({"node": "a"}, "3"), ({"node": "b"}, "4")])) == {("a",): 3.0, ("b",): 4.0}
    assert len(parsed) == 1
    assert rows.read(body([({"node": "b"}, "5")])) == {("b",): 5.0}
    assert len(parsed) == 2


@pytest.mark.parametrize(
    "broken",
    [
        b"no JSON",
        b'{"status":"error"}',
        body([({"node": "a"}, "1")])[:-20],
        body([({"node": "a"}, "one")]),
        b'{"data":{"result":[{"metric":{"node":"a"},"histogram":[1,{}]}]}}',
        b'{"data":{"result":[{"metric":{"node":"a"},{"b":1},"value":[1,"2"]}]}}',
    ],
)
def test_what_is_no_answer_is_refused(broken: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        Rows(("node",)).read(broken)


def test_answers_that_differ_in_their_time_alone_are_the_same() -> None:
    rows = [({"node": "a"}, "1"), ({"node": "b"}, "2")]
    assert untimed(body(rows)) == untimed(body(rows, time_s=TIME + 5))
    assert untimed(body(rows)) != untimed(body([({"node": "a"}, "1"), ({"node": "b"}, "3")]))
