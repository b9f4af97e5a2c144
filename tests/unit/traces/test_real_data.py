"""What the data folder's README and the publishers say of the real files, where those are on the machine."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.unit.traces.test_loaders import minute_counts
from traces import arrival_process, catalog, loading
from traces.catalog import SAMPLES
from traces.formats import azure_functions_2019
from traces.hours import hours
from traces.published import PUBLISHED
from traces.routing_logs import read_choices, read_counts

DATA = catalog.data_folder() or Path("no-data")
real = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not on this machine")


@real
@pytest.mark.parametrize(
    ("name", "requests", "span_s", "rps", "cv"),
    [
        ("llm-code", 7717, 2574, 3.00, 12.6),
        ("llm-conv", 15460, 2626, 5.89, 1.08),
        ("mooncake-conv", 5606, 1767, 3.17, 2.92),
        ("mooncake-made", 3993, 1022, 3.91, 1.01),
        ("functions-2021-sample", 199, 1200, 0.1658, 1.86),
    ],
)
def test_requests_span_rate_and_cv_are_as_published(
    name: str, requests: int, span_s: float, rps: float, cv: float
) -> None:
    trace = loading.load(catalog.resolve(name, DATA))
    assert trace.requests == requests and trace.duration_s == pytest.approx(span_s, abs=1.5)
    assert trace.mean_rps == pytest.approx(rps, rel=0.005)
    assert trace.iat_cv == pytest.approx(cv, abs=0.05)


@real
def test_the_eight_hours_of_functions_count_as_many_requests_as_their_rows() -> None:
    path = catalog.resolve("functions-8h", DATA)
    table = hours(path)
    total = sum(int(block.counts.sum()) for block in azure_functions_2019.read_blocks_of_days(path))
    assert len(table.names) <= 376 and table.requests.sum() <= total and table.first_minute == 480


@real
@pytest.mark.slow
def test_the_even_cv_of_every_hour_is_that_of_the_derived_list() -> None:
    with gzip.open(DATA / "azure_functions_2019" / "one_hour_windows.csv.gz", "rt") as file:
        listed = list(csv.DictReader(file))
    for name in ("invocations_8h_functions", "invocations_day_rows"):
        rows = {c.row: c for c in minute_counts(DATA / f"azure_functions_2019/{name}.csv.gz")}
        wanted = [hour for hour in listed if hour["file"] == name]
        counts = np.stack([rows[hour["row"]].hour(int(hour["first_minute"])).counts for hour in wanted])
        even, _ = arrival_process.hour_cv(counts)
        np.testing.assert_allclose(even, [float(hour["cv_iat_even"]) for hour in wanted], atol=1e-4)


def skew(shares: np.ndarray) -> np.ndarray:
    """Busiest expert over the mean, [...] from shares [..., experts]: 1 is even, E is all on one."""
    skews: np.ndarray = shares.max(axis=-1) * shares.shape[-1]
    return skews


@real
@pytest.mark.slow
def test_the_deepseek_log_has_the_prompts_tokens_and_skew_that_are_stated() -> None:
    routing = read_choices(DATA / "moe_routing" / "deepseek_v2_lite_chat_prefill_experts.parquet")
    assert routing.shares.shape == (24, 26, 64) and routing.tokens.sum() == 123_420
    assert routing.requests is not None and routing.requests.tokens.size == 1272
    assert routing.requests.tokens.max() == 2850 and np.median(routing.requests.tokens) == 25
    whole = routing.assignments.sum(axis=0)
    of_layers = skew(whole / whole.sum(axis=1, keepdims=True))[[0, 6, 12, 25]]
    assert of_layers.min() == pytest.approx(1.9, abs=0.06) and of_layers.max() == pytest.approx(2.1, abs=0.06)


@real
def test_olmoe_and_mixtral_have_the_sizes_and_skews_that_are_stated() -> None:
    folder = DATA / "moe_routing"
    olmoe = read_counts(folder / "olmoe_mixtral_expert_counts.csv.gz", "olmoe")
    assert olmoe.assignments.shape == (5, 3, 64) and olmoe.layer_names == ("0", "7", "15")
    skews = {name: skew(olmoe.shares[i]) for i, name in enumerate(olmoe.window_names)}
    assert skews["c4"].min() >= 2.45 and skews["c4"].max() <= 3.05
    assert skews["arxiv"].min() >= 6.25 and skews["arxiv"].max() <= 7.85
    mixtral = read_counts(folder / "olmoe_mixtral_expert_counts.csv.gz", "mistral")
    with gzip.open(folder / "olmoe_mixtral_crosslayer_counts.csv.gz", "rt") as file:
        pairs = [row for row in csv.DictReader(file) if (row["model"], row["domain"]) == ("mistral", "arxiv")]
    summed = np.zeros(8, dtype=np.int64)
    for row in pairs:
        if (row["layer_a"], row["layer_b"]) == (pairs[0]["layer_a"], pairs[0]["layer_b"]):
            summed[int(row["expert_a"])] += int(row["count"])
    np.testing.assert_array_equal(summed, mixtral.assignments[mixtral.window_names.index("arxiv"), 0])


@real
def test_token_counts_are_the_published_assignments_to_within_a_fraction() -> None:
    """The origin's two files have the same totals but differ in less than one choice of a thousand."""
    table = pq.read_table(DATA / "moe_routing" / "olmoe_token_to_expert.parquet", filters=[("domain", "=", "arxiv")])
    counts = read_counts(DATA / "moe_routing" / "olmoe_mixtral_expert_counts.csv.gz", "olmoe")
    published = counts.assignments[counts.window_names.index("arxiv")]
    layers, layer = np.unique(table["layer"].to_numpy(), return_inverse=True)
    summed = np.zeros((len(layers), published.shape[1]), dtype=np.int64)
    np.add.at(summed, (layer, table["expert"].to_numpy().astype(np.int64)), table["count"].to_numpy().astype(np.int64))
    np.testing.assert_array_equal(summed.sum(axis=1), published.sum(axis=1))
    assert np.abs(summed - published).sum(axis=1).max() / published.sum(axis=1).max() < 0.002


def test_the_page_names_every_format_column_and_published_trace() -> None:
    page = (Path(__file__).parents[3] / "docs" / "traces.md").read_text()
    for entry in PUBLISHED:
        assert f"`{entry.name}`" in page and entry.licence in page, entry.name
    for name in ("made_azure_functions_2021.csv", "made_azure_llm.csv", "made_burstgpt.csv", "made_servegen.csv"):
        assert (SAMPLES / name).read_text().splitlines()[0] in page
