"""Copies of API objects: plain JSON, so copied as such, which is much quicker than ``copy.deepcopy``."""

from __future__ import annotations

from typing import Any

import orjson


def copied(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))
