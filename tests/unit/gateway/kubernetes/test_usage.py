"""How often a cluster that measures no pods is asked whether it does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gateway.backends.kubernetes.api import ApiError, UnreachableError
from gateway.backends.kubernetes.usage import MOST_SKIPPED, PodUsage
from gateway.contract import NOT_MEASURED


class Answering:
    """An API server that gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    async def get(self, path: str, query: dict[str, str]) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


POD = {"metadata": {"name": "p"}, "containers": [{"usage": {"cpu": "250m", "memory": "1Mi"}}]}
MISSING, AWAY = ApiError("list", 404, "the server could not find it"), UnreachableError("away")


async def measured(times: int, *answers: Any) -> tuple[list[int], PodUsage]:
    """In which of so many measurements the server was asked."""
    api = Answering(*answers)
    usage, asked = PodUsage(api, "n", "s"), []  # type: ignore[arg-type]
    for number in range(times):
        before = api.asked
        await usage.measure()
        if api.asked > before:
            asked.append(number)
    return asked, usage


async def test_it_is_asked_ever_more_rarely_where_nothing_serves_usage() -> None:
    asked, usage = await measured(200, MISSING)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps == [2, 4, 8, 16, 32, 32, 32, 32, 32] and max(gaps) == MOST_SKIPPED + 1
    assert usage.available is False


@pytest.mark.parametrize("answer", [AWAY, ApiError("list", 503, "later"), {"items": [POD]}])
async def test_it_is_asked_every_time_while_the_server_is_away_or_has_numbers(answer: Any) -> None:
    assert (await measured(5, answer))[0] == [0, 1, 2, 3, 4]


async def test_a_metrics_server_that_comes_later_is_noticed_and_asked_every_time() -> None:
    asked, usage = await measured(10, MISSING, MISSING, {"items": [POD]})
    assert asked == [0, 2, 6, 7, 8, 9]
    assert usage.of("p").cpu_millicores == 250.0 and usage.of("q") == NOT_MEASURED
