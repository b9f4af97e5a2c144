"""Settings from the environment, and the instruments' arithmetic."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from functions.dispatch.dispatcher import CallRecord
from functions.serving import metric_names as names
from functions.serving.instruments import Distribution, IngressInstruments, PeakGauge
from functions.serving.live_settings import live_max_inflight
from functions.serving.settings import SettingsError, duration_s, from_environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "pipeline.json").write_text("{}")
    return tmp_path


def test_a_pipeline_is_named_by_folder_or_under_the_folder_of_pipelines(folder: Path) -> None:
    whole = from_environment({"smoe_pipeline": str(folder / "m"), "smoe_nodes": "ingress"})
    named = from_environment(
        {"smoe_pipeline": "m", "smoe_pipelines_dir": str(folder), "smoe_nodes": "segment-0, expert-0-1"}
    )
    assert whole.pipeline_dir == named.pipeline_dir
    assert whole.is_ingress
    assert named.nodes == ("segment-0", "expert-0-1")


def test_a_function_looks_for_others_in_the_namespace_it_was_given(folder: Path) -> None:
    own = {"smoe_pipeline": str(folder / "m"), "smoe_nodes": "ingress"}
    assert from_environment({**own, "OPENFAAS_NAMESPACE": "team-a"}).namespace == "team-a"
    assert from_environment({**own, "OPENFAAS_NAMESPACE": ""}).namespace == "openfaas-fn"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"smoe_dispatch": "nearest"}, "smoe_dispatch is 'nearest'; .*local-first, .*token-balanced or aebs$"),
        ({"smoe_transfer": "pigeon"}, "smoe_transfer is 'pigeon'; it takes direct, two-phase or adaptive$"),
        ({"smoe_pipeline": ""}, "smoe_pipeline is not set"),
        ({"smoe_pipeline": "other"}, "does not exist"),
        ({"smoe_nodes": ""}, "smoe_nodes"),
        ({"smoe_nodes": "ingress,segment-0"}, "one word ingress"),
        ({"max_inflight": "-1"}, "max_inflight"),
        ({"write_timeout": "soon"}, "write_timeout"),
        ({"smoe_queue_limit": "1.5"}, "smoe_queue_limit"),
    ],
)
def test_bad_settings_are_refused_by_name(folder: Path, change: dict[str, str], word: str) -> None:
    good = {"smoe_pipeline": "m", "smoe_pipelines_dir": str(folder), "smoe_nodes": "segment-0"}
    with pytest.raises(SettingsError, match=word):
        from_environment({**good, **change})


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("1.5s", 1.5)]
)
def test_durations_are_seconds_or_gos(text: str, seconds: float) -> None:
    assert duration_s("x", text) == pytest.approx(seconds)


@given(st.text(max_size=8))
def test_other_texts_are_no_durations_or_positive_ones(text: str) -> None:
    with suppress(SettingsError):
        assert duration_s("x", text) >= 0


def test_the_live_limit_keeps_the_present_one_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    assert live_max_inflight(path, 3) == 3
    path.write_text("{}")
    assert live_max_inflight(path, 3) == 3
    path.write_text('{"max_inflight": 0}')
    assert live_max_inflight(path, 3) == 0
    for bad in ("[]", "{", '{"max_inflight": true}', '{"max_inflight": -1}'):
        path.write_text(bad)
        with pytest.raises(SettingsError):
            live_max_inflight(path, 3)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_distribution_counts_as_prometheus_defines(values: list[float]) -> None:
    distribution = Distribution()
    for value in values:
        distribution.observe(value)
    for bound, count in distribution.cumulative():
        assert count == sum(value <= float(bound) for value in values)
    assert distribution.total == pytest.approx(sum(values))


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(-5, 9)), max_size=30))
def test_the_peak_is_the_largest_value_of_the_last_window(steps: list[tuple[float, int]]) -> None:
    gauge, now_s, value = PeakGauge(window_s=60.0), 0.0, 0
    held: list[tuple[float, float, int]] = []  # from, to, value
    for wait_s, amount in steps:
        held.append((now_s, now_s + wait_s, value))
        now_s += wait_s
        value += amount
        gauge.change(amount, now_s)
    expected = max([value, *(v for begin, end, v in held if end >= now_s - 60.0 and end > begin)])
    peak = gauge.peak(now_s)
    assert peak >= expected
    assert peak <= max([value, 0, *(v for _, _, v in held)])


def test_failed_requests_count_as_slower_than_every_bucket_however_soon_they_were_refused() -> None:
    instruments = IngressInstruments("m", ["segment-0"], 1, lambda: 0.0)
    for status in (200, 400, 429, 500, 503):
        instruments.finished(status, 0.001, 0)
    below, above = instruments.request_seconds.cumulative()[-2:]
    assert (below[1], above[1]) == (2, 5) and instruments.request_seconds.total == pytest.approx(0.005)


def test_the_text_has_every_metric_of_the_contract() -> None:
    instruments = IngressInstruments("m", ["segment-0"], 1, lambda: 0.0)
    node = instruments.nodes["segment-0"]
    node.begin(5, 0.0)
    node.end(5, 0.0, 0.3, CallRecord(wait_s=0.1, busy_s=0.2, status="200", repeats=["connect"]))
    instruments.finished(200, 0.5, 5)
    families = {family.name: family for family in text_string_to_metric_families(instruments.text().decode())}
    expected = {value for key, value in vars(names).items() if isinstance(value, str) and value.startswith("smoe_")}
    assert {name.removesuffix("_total") for name in expected} <= set(families)
    samples = {s.name: s for family in families.values() for s in family.samples if s.labels.get("node")}
    assert samples["smoe_node_wait_seconds_total"].value == pytest.approx(0.1)
    assert samples["smoe_node_busy_seconds_total"].value == pytest.approx(0.2)
    assert samples["smoe_node_retries_total"].labels["reason"] == "connect"
    assert samples["smoe_node_tokens_in_flight_peak"].value == 5
    assert samples["smoe_node_call_seconds_count"].value == 1


def test_buckets_are_those_of_the_contract() -> None:
    assert names.BUCKETS_S[0] == 0.0005
    assert len(names.BUCKETS_S) == 45
    for low, high in zip(names.BUCKETS_S, names.BUCKETS_S[1:], strict=False):
        assert high / low == pytest.approx(1.3, rel=1e-4)
