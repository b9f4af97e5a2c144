"""What a worker states about its products: how many it computed, of how many calls."""

from __future__ import annotations

import re

import urllib3

from simulation.profiles.model.errors import MeasurementError

_BATCHES = re.compile(rb"^smoe_worker_batch_calls_(sum|count) (\S+)$", re.MULTILINE)
_ASK_S = 5.0


def products_of(address: str) -> tuple[float, float] | None:
    """(calls, products) of the worker at ``address`` (host:port) so far; None where it states none. Raises
    MeasurementError."""
    try:
        reply = urllib3.request("GET", f"http://{address}/metrics", timeout=_ASK_S, retries=False)
    except urllib3.exceptions.HTTPError as error:
        raise MeasurementError(f"the metrics of the worker at {address} could not be read: {error}") from error
    values = {kind: float(value) for kind, value in _BATCHES.findall(reply.data)}
    return (values[b"sum"], values[b"count"]) if len(values) == 2 else None
