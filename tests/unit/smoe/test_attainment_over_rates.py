"""ElasticMoE's Figure 10: when requests come, and which of them are attained."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.steady_load import BROKEN, Answers, Load, SteadyLoad
from benchmarks.live_scaling.attainment import Ramp, attained, sustained

RAMP = Ramp(2.0, 10.0, 40.0)


def test_requests_come_at_a_rate_that_rises_evenly() -> None:
    arrival_s = RAMP.arrival_s()
    assert len(arrival_s) == 240 and arrival_s[0] == 0 and arrival_s[-1] < 40
    halves = np.histogram(arrival_s, [0, 20, 40])[0]
    assert halves.tolist() == [80, 160]  # 2 to 6 a second, then 6 to 10
    assert 1 / np.diff(arrival_s) == pytest.approx(RAMP.rate((arrival_s[1:] + arrival_s[:-1]) / 2))


def test_an_even_rate_has_even_intervals() -> None:
    assert Ramp(4.0, 4.0, 2.0).arrival_s().tolist() == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]


def test_a_request_counts_for_the_rate_at_which_it_came_and_late_wrong_and_lost_ones_are_missed() -> None:
    began_s = np.array([100.0, 105.0, 110.0, 125.0, 130.0, 139.0])  # rates 2, 3, 4, 7, 8, 9.8
    ended_s = began_s + np.array([0.1, 0.1, 1.5, 0.1, 0.1, 60.0])
    answers = Answers(began_s, ended_s, np.array([200, 200, 200, 503, 200, BROKEN]))
    assert attained(answers, RAMP, np.array([2.0, 6.0, 10.0]), 1.0) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert attained(answers, RAMP, np.array([2.0, 5.0, 6.0, 10.0]), 1.0)[1] is None


def test_a_rate_is_sustained_until_the_first_bin_below_the_target() -> None:
    edges = np.array([1.0, 2.0, 3.0, 4.0])
    assert sustained([1.0, 0.95, 0.5], edges, 0.9) == 3
    assert sustained([0.5, 1.0, 1.0], edges, 0.9) == 1
    assert sustained([1.0, None, 1.0], edges, 0.9) == 4


def test_a_load_is_due_at_its_rate_or_at_its_times() -> None:
    expected = np.zeros((1, 2))
    assert not Load("", ["a"], expected, 4).follows_times
    assert Load("", ["a"], expected, 4, rate=4.0).due_s(2) == 0.5
    given = Load("", ["a"], expected, 0, arrival_s=np.array([0.0, 3.0]))
    assert given.follows_times and given.due_s(1) == 3 and given.due_s(2) == float("inf")


@pytest.mark.slow
def test_each_request_of_given_times_is_sent_once_and_then_nothing_more(tmp_path: Path) -> None:
    asked: list[bytes] = []
    all_here = threading.Event()

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = b'{"embeddings": [[1.0, 0.0]]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            if len(asked) == 3:
                all_here.set()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        load = Load(url, ["a", "b"], np.array([[1.0, 0.0], [0.0, 1.0]]), 0, arrival_s=np.array([0.0, 0.01, 0.02]))
        with SteadyLoad(load, tmp_path) as clients:
            assert all_here.wait(60)
        server.shutdown()
    assert sorted(asked) == [b'{"inputs":"a"}', b'{"inputs":"a"}', b'{"inputs":"b"}']
    assert sorted(clients.answers.status.tolist()) == [1, 200, 200]  # the second one's answer is not the model's
