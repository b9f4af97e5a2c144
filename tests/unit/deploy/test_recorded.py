"""What ``deploy/prometheus/rules.yaml`` records of cAdvisor's samples, in promtool's own unit tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yaml"
CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"


def sampled(metric: str, pod: str, values: str) -> dict[str, str]:
    return {"series": f'{metric}{{namespace="openfaas-fn",container="f",pod="{pod}"}}', "values": values}


def expected(name: str, at: str, **values: int) -> dict[str, object]:
    labels = f'{name}{{function_name="f.openfaas-fn",replica="%s"}}'
    samples = [{"labels": labels % pod, "value": value} for pod, value in values.items()]
    return {"expr": name, "eval_time": at, "exp_samples": samples}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_pod_that_is_gone_is_not_recorded_for_minutes(tmp_path: Path) -> None:
    # Its samples end after 20 s without a marker, as those do that bring their own time.
    test = {
        "interval": "5s",
        "input_series": [
            sampled(CPU, "gone", "0+1x4"),
            sampled(CPU, "here", "0+1x40"),
            sampled(MEMORY, "gone", "7x4"),
            sampled(MEMORY, "here", "8x40"),
        ],
        "promql_expr_test": [
            expected("smoe_replica_cpu_seconds_total", "55s", gone=4, here=11),
            expected("smoe_replica_cpu_seconds_total", "65s", here=13),
            expected("smoe_replica_memory_bytes", "55s", gone=7, here=8),
            expected("smoe_replica_memory_bytes", "65s", here=8),
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5s", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
