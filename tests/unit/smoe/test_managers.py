"""What weights managers are deployed with."""

from __future__ import annotations

from typing import Any

import pytest

from placement.moves.managers import NodeSettings, deploy_managers


class Gateway:
    def __init__(self) -> None:
        self.deployed: list[dict[str, Any]] = []

    def deploy(self, function: dict[str, Any]) -> None:
        self.deployed.append(function)

    def wait_ready(self, names: list[str], timeout_s: float) -> None:
        assert names == [function["service"] for function in self.deployed]


@pytest.mark.parametrize("lends", [False, True])
def test_managers_lend_on_gpus_only_where_that_is_asked_for(lends: bool) -> None:
    gateway = Gateway()
    deploy_managers(gateway, {"a": NodeSettings(lends_on_gpus=lends, device_memory_bytes=7)})  # type: ignore[arg-type]
    (function,) = gateway.deployed
    assert (function["annotations"].get("smoe.gpu-memory") == "true") == lends
    assert (function["envVars"].get("smoe_device_memory_bytes") == "7") == lends
    assert "smoe_device" not in function["envVars"]
