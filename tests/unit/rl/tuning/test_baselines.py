"""The benchmark of all baselines on a grid that takes seconds: tuned, compared, published."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks.baselines import main


def test_baselines_are_tuned_compared_and_published(tmp_path: Path) -> None:
    options = {
        "--workloads": "bert-4", "--patterns": "normal", "--policies": "serverlessmoe,kpa", "--sweep-on": "bert-4",
        "--seeds": "1", "--seconds": "240", "--mean-rps": "8", "--trials": "13", "--workers": "1",
        "--out": str(tmp_path / "out"), "--publish": str(tmp_path / "published"),
    }  # fmt: skip
    found = CliRunner().invoke(main, [part for option in options.items() for part in option], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    last = json.loads(found.output.splitlines()[-1])
    assert [cell["policy"] for cell in last["cells"]] == ["serverlessmoe", "kpa"]
    assert all(cell["over_bound"]["provisioned"]["value"] > -1 and cell["p95"] for cell in last["cells"])
    assert last["searches"] == {"serverlessmoe.bert-4.normal": {"trials": 13, "converged": False}}
    assert last["refused"] == {}
    published = {path.name for path in (tmp_path / "published").iterdir()}
    pictures = {"figure-7.png", "figure-8.png", "searches.png"}
    assert published == {"README.md", "results.csv", "searches.csv", "sweep.csv", "windows.parquet"} | pictures
    assert (tmp_path / "published" / "searches.csv").read_text().count("serverlessmoe.bert-4.normal,") == 13
    page = (tmp_path / "published" / "README.md").read_text()
    assert "| normal | kpa | 1 |" in page and "of which 0 converged" in page and "simulated" in page
