"""Answers of Prometheus' instant queries, read fast: thousands of rows in each, the same labels tick after tick.

Source: Prometheus' HTTP API, ``/api/v1/query``, results of type *vector*.
"""

from __future__ import annotations

import math
import re
from operator import itemgetter
from typing import Any

import orjson

from autoscaler.state.readings import LARGEST, Key

_TIME = re.compile(rb'"value":\[([0-9.e+]+),')
_BEGIN = b'"result":[{"metric":'
_BETWEEN = b'"]},{"metric":'
_END = b'"]}]}'


class Rows:
    """Reads the answers to one query, one after the other.

    Between rows' labels and numbers an answer is always written in the same way, so it is cut there; labels that came
    in the last answer are not parsed again. What is written otherwise is parsed as the JSON that it is.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        """``labels``: those whose values make the key; one that a row lacks is empty."""
        self._labels = labels
        self._known: tuple[list[bytes], list[Key]] = ([], [])
        """Labels as they were written, and the keys that they make."""

    def read(self, body: bytes) -> dict[Key, float]:
        """Label values → number, of rows that have one in range. Raises ValueError, LookupError, TypeError."""
        cut = _cut(body)
        if cut is None:
            rows = orjson.loads(body)["data"]["result"]
            return _in_range(_keys([row["metric"] for row in rows], self._labels), [float(r["value"][1]) for r in rows])
        written, numbers = cut
        if written != self._known[0]:
            metrics = orjson.loads(b"[" + b",".join(written) + b"]")
            if len(metrics) != len(written):
                raise ValueError("rows are not written one after the other")
            self._known = written, _keys(metrics, self._labels)
        return _in_range(self._known[1], numbers)


def untimed(body: bytes) -> bytes:
    """An answer without the time of its query, which stands in every row."""
    time = _TIME.search(body)
    return body if time is None else body.replace(b"[" + time[1] + b",", b"[,")


def _cut(body: bytes) -> tuple[list[bytes], list[float]] | None:
    """Each row's labels as they are written, and its number. None for an answer that is written in another way.

    None of the texts that it is cut at can stand within a label's value, where quotes are escaped.
    """
    time, begin = _TIME.search(body), body.find(_BEGIN)
    if time is None or begin < 0 or b"\n" in body:
        return None
    rows = body[begin + len(_BEGIN) :].replace(b',"value":[' + time[1] + b',"', b"\n").replace(_BETWEEN, b"\n")
    parts = rows.split(b"\n")
    last, end, _ = parts[-1].partition(_END)
    if len(parts) % 2 or not end:
        return None
    try:
        return parts[::2], [*map(float, parts[1:-1:2]), float(last)]
    except ValueError:
        return None


def _keys(metrics: list[dict[str, Any]], labels: tuple[str, ...]) -> list[Key]:
    if len(labels) > 1:
        try:
            return list(map(itemgetter(*labels), metrics))
        except KeyError:
            pass
    return [tuple([metric.get(label, "") for label in labels]) for metric in metrics]


def _in_range(keys: list[Key], numbers: list[float]) -> dict[Key, float]:
    """Without rows whose number is none, infinite, below 0 or beyond :data:`LARGEST`."""
    if numbers and math.isfinite(sum(numbers)) and min(numbers) >= 0.0 and max(numbers) < LARGEST:
        return dict(zip(keys, numbers, strict=True))
    return {key: number for key, number in zip(keys, numbers, strict=True) if 0.0 <= number < LARGEST}
