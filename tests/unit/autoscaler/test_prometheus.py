"""The Prometheus source: its queries, a server that fails, and a real server fed with the direct scrape's samples."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from autoscaler.build import shown
from autoscaler.contract import NodeObservation, Observation
from autoscaler.errors import UnreachableError
from autoscaler.monitor.growth import TargetHistory, readings_of
from autoscaler.monitor.prometheus import PrometheusSource, promql, promql_measured
from autoscaler.monitor.scrape import ScrapeSource, parse_exposition
from autoscaler.monitor.source import Monitor
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.settings import ControllerSettings
from autoscaler.state.features import observe
from autoscaler.state.readings import SHAPES, Series
from tests.unit.autoscaler import exporter
from tests.unit.autoscaler.builders import NOW_S, topology
from tests.unit.autoscaler.servers import Reply, serve

WINDOW_S, EVERY_S = 30, 5
HERE = r'pipeline="m",function_name=~"|.+[.](openfaas\\-fn)"'


@pytest.mark.slow
def test_a_password_in_the_server_s_address_is_in_no_log(tmp_path: Path) -> None:
    """An address is the one place where a Prometheus behind a password takes it from."""
    address = "http://reader:s3cret@127.0.0.1:1"
    (problem,) = PrometheusSource(address, "m").read(NOW_S, WINDOW_S).problems
    assert "Prometheus at http://127.0.0.1:1 did not answer" in problem and "s3cret" not in problem
    with pytest.raises(UnreachableError, match=r"at http://127\.0\.0\.1:1 failed"):
        OpenFaasPlatform("http://admin:s3cret@127.0.0.1:1", "m", None).configurations()
    problems = ScrapeSource("http://admin:s3cret@127.0.0.1:1", None).read(NOW_S, WINDOW_S).problems
    assert "at http://127.0.0.1:1/system/targets" in str(problems) and "s3cret" not in str(problems)
    settings = ControllerSettings("http://admin:s3cret@g:8080", tmp_path, prometheus_url=address)
    assert "s3cret" not in str(shown(settings)) and shown(settings)["prometheus_url"] == "http://127.0.0.1:1"
    assert shown(replace(settings, prometheus_url=None))["prometheus_url"] is None


@pytest.mark.parametrize("source", [lambda url: ScrapeSource(url, None), lambda url: PrometheusSource(url, "m")])
@pytest.mark.parametrize("status", [404, 500, 503])
def test_nor_is_it_where_the_server_answers_with_an_error(source: Callable[[str], Any], status: int) -> None:
    """The text of requests' own error holds the whole address."""
    with serve(lambda *_: (status, b"no")) as server:
        problems = str(source(f"http://admin:s3%40cret@{server.address}").read(NOW_S, WINDOW_S).problems)
    assert server.url in problems and str(status) in problems and "cret" not in problems


@pytest.mark.parametrize("source", [lambda url: ScrapeSource(url, None), lambda url: PrometheusSource(url, "m")])
def test_nor_where_it_holds_a_slash_that_nobody_encoded(source: Callable[[str], Any]) -> None:
    problems = str(source("http://admin:s3/cret@h").read(NOW_S, WINDOW_S).problems)
    assert "InvalidURL" in problems and "http://h" in problems and "cret" not in problems and "s3" not in problems


@pytest.mark.parametrize(
    ("series", "query"),
    [
        (
            Series.NODE_TOKENS,
            f"sum by (pipeline, node) (increase(smoe_node_tokens_total{{{HERE}}}[30000ms]))",
        ),
        (
            Series.NODE_CALL_SECONDS,
            "histogram_quantile(0.95, sum by (pipeline, node, le) "
            f"(increase(smoe_node_call_seconds_bucket{{{HERE}}}[30000ms])))",
        ),
        (
            Series.REQUESTS_IN_FLIGHT,
            f"sum by (pipeline) (smoe_requests_in_flight{{{HERE}}})",
        ),
        (
            Series.REPLICAS_WANTED,
            'max by (function_name) (gateway_service_count{function_name=~"m(-.+)?[.]openfaas\\\\-fn"})',
        ),
        (
            Series.REPLICAS_BY_STATE,
            "max by (function_name, state) "
            '(smoe_function_replicas{function_name=~"m(-.+)?[.]openfaas\\\\-fn",state=~"ready|standby"})',
        ),
        (Series.CPU_SCALE, "max by () (smoe_cpu_scale)"),
    ],
)
def test_queries_leave_out_other_pipelines(series: Series, query: str) -> None:
    assert promql(series, "m", 30.0) == query


def test_ingresses_may_be_labelled_with_the_namespace_s_name_in_the_cluster() -> None:
    """The gateway calls its home openfaas-fn whatever the cluster calls it."""
    query = promql(Series.REQUESTS_IN_FLIGHT, "m", 30.0, in_cluster="fns")
    assert query.endswith(r'function_name=~"|.+[.](openfaas\\-fn|fns)"})')


def test_measured_replicas_are_those_that_were_there_all_the_window() -> None:
    found = 'smoe_replica_cpu_seconds_total{function_name=~"m(-.+)?[.]openfaas\\\\-fn"}'
    query = promql_measured(Series.REPLICA_CPU_SECONDS, "m", 5.0, "count")
    assert query == f"count by (function_name) (increase({found}[5000ms]) and {found} and {found} offset 5000ms)"


@pytest.mark.parametrize(
    "reply",
    [(500, b"broken"), (200, b"no json"), (200, b'{"status": "error"}'), (200, b'{"data": null}')],
    ids=["500", "no JSON", "no data", "null"],
)
def test_a_server_that_fails_makes_the_window_stale(reply: Reply) -> None:
    with serve(lambda *_: reply) as server:
        readings = PrometheusSource(server.url, "m").read(NOW_S, 30.0)
    assert readings.stale and f"Prometheus at {server.url} did not answer" in readings.problems[0]
    assert observe(topology(), readings).requests is None


def test_an_unavailable_server_is_asked_again() -> None:
    with serve(lambda *_: (503, b"starting")) as server:
        assert PrometheusSource(server.url, "m").read(NOW_S, 30.0).stale
    assert len(server.seen) == 3


def test_a_server_without_samples_says_what_is_missing() -> None:
    with serve(lambda *_: (200, b'{"status": "success", "data": {"result": []}}')) as server:
        readings = PrometheusSource(server.url, "m").read(NOW_S, 30.0)
    assert readings.stale
    assert any("is the ingress scraped?" in problem for problem in readings.problems)


def answers(limits: str, time_s: float) -> bytes:
    rows = ",".join(
        f'{{"metric":{{"function_name":"m{i}.openfaas-fn","state":"ready","le":"+Inf"}},"value":[{time_s:.3f},"{value}"]}}'
        for i, value in enumerate([limits, "NaN", "+Inf", "-1", "1e300"])
    )
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{rows}]}}}}'.encode()


def test_numbers_that_cannot_be_are_left_out_of_every_answer() -> None:
    with serve(lambda *_: (200, answers("5", NOW_S))) as server:
        readings = PrometheusSource(server.url, "m").read(NOW_S, 30.0)
    assert readings.values[Series.CPU_LIMIT_CORES] == {("m0.openfaas-fn",): 5.0}
    assert readings.values[Series.REPLICAS_BY_STATE] == {("m0.openfaas-fn", "ready"): 5.0}
    assert readings.values[Series.NODE_TOKENS] == {("", ""): 5.0}
    assert readings.tails[Series.NODE_CALL_SECONDS] == {("", ""): 5.0} and readings.counts[Series.REPLICA_MEMORY_BYTES]


def test_settings_that_stay_are_understood_once_and_a_change_is_seen_at_once() -> None:
    said = ["5", NOW_S]
    with serve(lambda *_: (200, answers(str(said[0]), float(said[1])))) as server:
        source = PrometheusSource(server.url, "m")
        first = source.read(NOW_S, 30.0).values[Series.CPU_LIMIT_CORES]
        said[1] = NOW_S + 5
        second = source.read(NOW_S + 5, 30.0).values[Series.CPU_LIMIT_CORES]
        said[0] = "6"
        third = source.read(NOW_S + 5, 30.0).values[Series.CPU_LIMIT_CORES]
    assert second is first and first == {("m0.openfaas-fn",): 5.0} and third == {("m0.openfaas-fn",): 6.0}


def assert_equal(one: Observation, other: Observation, relative: float) -> None:
    assert not one.stale and not other.stale, (one.problems, other.problems)
    pairs = [(f"pipeline {name}", getattr(one, name), getattr(other, name)) for name in _NUMBERS]
    for left, right in zip(one.nodes, other.nodes, strict=True):
        pairs += [(f"{left.node} {name}", getattr(left, name), getattr(right, name)) for name in _NODE]
    for a, b in zip(one.layers, other.layers, strict=True):
        pairs.append((f"layer {a.layer} barrier", a.barrier_p95_s, b.barrier_p95_s))
        pairs.append((f"layer {a.layer} entropy", a.token_routing_entropy, b.token_routing_entropy))
    for name, left, right in pairs:
        if isinstance(left, float) and isinstance(right, float):
            assert math.isclose(left, right, rel_tol=relative, abs_tol=1e-9), (name, left, right)
        else:
            assert left == right, (name, left, right)


_NODE = [name for name in NodeObservation._fields if name not in ("age_s", "busy_s", "cpu_s")]
_NUMBERS = ("requests_per_s", "tokens_per_s", "in_flight", "latency_p50_s", "latency_p95_s", "latency_p99_s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(folder: Path, config: str) -> Iterator[str]:
    """A real server on ``folder``'s blocks; ends with the test."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no Prometheus server on PATH")
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        poll_prometheus(lambda: requests.get(f"http://{address}/-/ready", timeout=2).status_code == 200, 30)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(10)


def _samples(url: str, window_s: float) -> float:
    query = f'count_over_time(smoe_requests_in_flight{{pipeline="m"}}[{window_s:g}s])'
    rows = requests.get(f"{url}/api/v1/query", params={"query": query}, timeout=2).json()["data"]["result"]
    return float(rows[0]["value"][1]) if rows else 0.0


def poll_prometheus(done: object, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        try:
            if done():  # type: ignore[operator]
                return
        except requests.RequestException:
            pass
        threading.Event().wait(0.1)
    pytest.fail(f"not within {limit_s} s")


@pytest.mark.prometheus
def test_a_real_server_holding_the_same_samples_gives_the_direct_scrape_s_numbers(tmp_path: Path) -> None:
    """Samples at fixed times, restart of the ingress included, are loaded into Prometheus and into the ring."""
    targets = {"g": TargetHistory("gateway"), "i": TargetHistory("ingress")}
    samples = []
    for passed_s in range(-EVERY_S, WINDOW_S + 1, EVERY_S):
        time_s = NOW_S - WINDOW_S + passed_s
        # The ingress restarts from zero in the middle of the window.
        counted_s = passed_s if passed_s < 15 else passed_s - 12
        for key, lines in (
            ("g", exporter.lines_of_gateway(1000.0 + passed_s)),
            ("i", exporter.lines_of_ingress(500.0 + counted_s if passed_s < 15 else counted_s)),
        ):
            if passed_s >= 0:
                targets[key].scrapes.append((time_s, parse_exposition(exporter.text(lines))))
            samples += [f"{line} {time_s:.3f}" for line in lines]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH")
    dump = tmp_path / "samples.txt"
    dump.write_text("\n".join(sorted(samples, key=lambda line: line.split(" ")[0])) + "\n# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(dump), str(tmp_path / "data")]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    direct = observe(topology(), readings_of(targets, NOW_S, WINDOW_S))
    with prometheus(tmp_path, "global: {scrape_interval: 5s}\n") as url:
        # A millisecond more, since ranges hold their left end in some versions and not in others.
        observed = Monitor(topology(), PrometheusSource(url, "m")).observe(NOW_S, WINDOW_S + 0.001)
    assert direct.requests_per_s is not None and direct.requests_per_s > 3
    assert_equal(observed, direct, 1e-3)


@pytest.mark.prometheus
@pytest.mark.slow
def test_a_real_server_scraping_the_same_targets_gives_the_direct_scrape_s_numbers(tmp_path: Path) -> None:
    begun_s = time.time()
    addresses: dict[str, str] = {}

    def targets(*_: object) -> Reply:
        listed = [{"targets": [address], "labels": {"job": job}} for job, address in addresses.items()]
        return 200, json.dumps(listed).encode()

    def expose(lines: object) -> Reply:
        return 200, exporter.text(lines(1.0 + time.time() - begun_s)).encode()  # type: ignore[operator]

    with (
        serve(lambda *_: expose(exporter.lines_of_gateway)) as gateway,
        serve(lambda *_: expose(exporter.lines_of_ingress)) as ingress,
        serve(targets) as front,
    ):
        addresses |= {"gateway": gateway.address, "ingress": ingress.address}
        config = (
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            "scrape_configs: [{job_name: smoe, "
            f"http_sd_configs: [{{url: '{front.url}/system/targets', refresh_interval: 1s}}]}}]\n"
        )
        direct = Monitor(topology(), ScrapeSource(front.url, None))
        with prometheus(tmp_path, config) as url:
            source = PrometheusSource(url, "m")
            window_s = 6.0
            # A busy machine makes the server miss scrapes; a window without gaps comes sooner or later.
            for attempt in range(4):
                direct.observe(time.time(), window_s)
                first_s = time.time()
                poll_prometheus(
                    lambda since=first_s: time.time() - since > window_s and _samples(url, window_s) >= 2 * window_s, 40
                )
                now_s = time.time()
                served, scraped = Monitor(topology(), source).observe(now_s, window_s), direct.observe(now_s, window_s)
                if attempt == 3 or _equal(served, scraped):
                    break
            assert_equal(served, scraped, 0.1)


def _equal(one: Observation, other: Observation) -> bool:
    try:
        assert_equal(one, other, 0.1)
    except AssertionError:
        return False
    return True


def test_every_series_has_a_query() -> None:
    assert all(promql(series, "m", 5.0) for series in SHAPES)
