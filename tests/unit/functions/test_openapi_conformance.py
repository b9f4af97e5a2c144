"""An ingress answers ``/v1`` as the gateway's OpenAPI file describes it, whatever is asked.

Schemathesis makes requests from the file, well-formed and broken ones, and sends them to a real pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.preset import byte_tokenizer
from moe.split import split
from tests.unit.functions.test_generation import TEMPLATE
from tests.unit.moe import tiny

pytestmark = pytest.mark.slow
DOCUMENT: dict[str, Any] = yaml.safe_load(resources.files("gateway").joinpath("openapi.yaml").read_bytes())
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)
api = schemathesis.openapi.from_dict(DOCUMENT).include(path_regex="^/v1/")
api.config.generation.update(deterministic=True, allow_extra_parameters=False, with_security_parameters=False)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root: Path = tmp_path_factory.mktemp("described")
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=64, eos_token_id=299)
    checkpoint = tiny.store(model, root / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    split(checkpoint, root / "tiny", "tiny", 4, None)
    with LocalPipeline(root / "tiny", environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline.url


@api.parametrize()
@settings(max_examples=10, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_agree_with_the_file(case: schemathesis.Case[Any], url: str) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and case.body["model"]:
        case.body["model"] = "tiny"  # the only one here; others are 404
    case.call_and_validate(base_url=url, timeout=100, checks=cast(Any, CHECKS.get_by_names(CHECKED)))
