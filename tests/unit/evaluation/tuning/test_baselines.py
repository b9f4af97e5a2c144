"""The benchmark of all baselines on a grid that takes seconds: tuned, compared, published."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.baselines import main

pytestmark = pytest.mark.slow


def test_baselines_are_tuned_compared_and_published(tmp_path: Path) -> None:
    options = {
        "--workloads": "bert-4", "--patterns": "normal", "--policies": "serverlessmoe,kpa", "--sweep-on": "bert-4",
        "--seeds": "1", "--seconds": "240", "--mean-rps": "30", "--relative-slo": "1.5", "--trials": "13",
        "--workers": "1", "--out": str(tmp_path / "out"), "--publish": str(tmp_path / "published"),
    }  # fmt: skip
    result = CliRunner().invoke(main, [part for option in options.items() for part in option], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    last = json.loads(result.output.splitlines()[-1])
    assert [cell["policy"] for cell in last["cells"]] == ["serverlessmoe", "kpa"]
    assert all(cell["over_bound"]["provisioned"]["value"] > -1 and cell["p95"] for cell in last["cells"])
    assert last["searches"] == {"serverlessmoe.bert-4.normal": {"trials": 13, "converged": False}}
    assert last["refused"] == {}
    published = {path.name for path in (tmp_path / "published").iterdir()}
    pictures = {"figure-7.png", "figure-8.png", "searches.png"}
    tables = {"README.md", "results.csv", "searches.csv", "sweep.csv", "windows.parquet"}
    assert published == tables | pictures | {"settings", "plans.tar.gz"}
    settings = sorted(path.name for path in (tmp_path / "published" / "settings").iterdir())
    assert settings == ["kpa.bert-4.toml", "kpa.toml"]
    with tarfile.open(tmp_path / "published" / "plans.tar.gz") as archive:
        for name in archive.getnames():
            packed = archive.extractfile(name)
            assert packed is not None and packed.read() == (tmp_path / "out" / name).read_bytes()
        assert archive.getnames() == ["plans/serverlessmoe.bert-4.normal.0.json"]
    assert (tmp_path / "published" / "searches.csv").read_text().count("serverlessmoe.bert-4.normal,") == 13
    page = (tmp_path / "published" / "README.md").read_text()
    assert "| normal | kpa | 1 |" in page and "of which 0 converged" in page and "simulated" in page
