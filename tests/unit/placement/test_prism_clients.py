"""What the real run's clients and counters come to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from benchmarks.prism_real.clients import Counts, Served, counted, joined

EXPOSED = b"""\
# TYPE smoe_node_tokens counter
smoe_node_tokens_total{pipeline="m",node="segment-0"} 9
smoe_node_tokens_total{pipeline="m",node="expert-0-1"} 4
smoe_node_tokens_total{pipeline="m",node="expert-1-0"} 6
# TYPE smoe_machine_calls counter
smoe_machine_calls_total{pipeline="m",machine="a",place="local",kind="expert"} 3
smoe_machine_calls_total{pipeline="m",machine="b",place="remote",kind="expert"} 1
smoe_machine_calls_total{pipeline="m",machine="a",place="local",kind="segment"} 50
# TYPE smoe_machine_bytes counter
smoe_machine_bytes_total{pipeline="m",machine="a",place="local",direction="sent"} 70
smoe_machine_bytes_total{pipeline="m",machine="b",place="remote",direction="sent"} 20
smoe_machine_bytes_total{pipeline="m",machine="b",place="remote",direction="received"} 10
"""


@pytest.fixture
def address() -> Iterator[str]:
    """An ingress that exposes EXPOSED."""

    class Exposing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(EXPOSED)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Exposing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_every_ingress_counts_its_own_nodes_tokens_and_all_count_calls_and_bytes(address: str) -> None:
    counts = counted([address, address], (2, 2))
    assert counts.tokens.tolist() == [[[0, 4], [6, 0]]] * 2
    assert (counts.local, counts.remote, counts.remote_bytes) == (6, 2, 60)
    assert counts.local_ratio == 0.75


def test_counts_of_a_time_are_those_at_its_end_less_those_at_its_beginning() -> None:
    ones = np.ones((2, 1, 2))
    later, sooner = Counts(3 * ones, 9, 5, 7), Counts(ones, 1, 1, 2)
    part = later - sooner
    assert (part.tokens == 2).all() and (part.local, part.remote, part.remote_bytes) == (8, 4, 5)
    assert ((part + sooner).tokens == later.tokens).all() and (part + sooner).local == later.local
    assert np.isnan((later - later).local_ratio)


def test_mixed_tokens_are_equal_on_all_nodes_and_as_many() -> None:
    counts = Counts(np.array([[[4.0, 0.0]], [[2.0, 6.0]]]), 0, 0, 0)
    assert counts.mixed().tolist() == [[[3, 3]], [[3, 3]]]


def test_latency_counts_answered_requests_from_when_they_were_due() -> None:
    run = Served(
        np.array([0, 0, 1]), np.array([0.0, 1.0, 2.0]), np.array([0.1, 1.3, 9.0]), np.array([True, True, False])
    )
    assert run.mean_ms() == pytest.approx(200)
    assert run.of(0).mean_ms() == pytest.approx(200) and np.isnan(run.of(1).mean_ms())
    assert run.between(0.5, 2.0).mean_ms() == pytest.approx(300)
    assert joined([run, run]).failed == 2
