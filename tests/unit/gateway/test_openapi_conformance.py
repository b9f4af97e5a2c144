"""A gateway answers as its OpenAPI file describes, whatever is asked.

Schemathesis makes requests from the file, well-formed and broken ones, and sends them to a running gateway whose
backend is in memory. Everything is derived from the file, so the same file gives the same requests.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from tests.unit.gateway.gateways import TIMEOUT_S, Served
from tests.unit.gateway.test_openapi import DOCUMENT

pytestmark = pytest.mark.slow
CHECKED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "ignored_auth",
)
EXAMPLES = 5

api = schemathesis.openapi.from_dict(DOCUMENT)
# Unknown parameters are ignored, as OpenFaaS ignores them; the password is given below, and tested by ignored_auth.
api.config.generation.update(deterministic=True, allow_extra_parameters=False, with_security_parameters=False)


@api.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_replies_agree_with_the_file(case: schemathesis.Case[Any], served: Served) -> None:
    served.with_function()
    case.query = {name: value for name, value in case.query.items() if not _endless(name, value)}
    case.headers.pop("X-Callback-Url", None)  # nothing is posted to made-up addresses
    running = served.running
    address = running.metrics_address if case.path == "/metrics" else running.address
    headers = {"Authorization": running.basic} if case.operation.security.iter_parameters() else {}
    reply = case.call_and_validate(
        base_url=f"http://{address}",
        session=served.session,
        headers=headers,
        timeout=TIMEOUT_S,
        checks=cast(Any, CHECKS.get_by_names(CHECKED)),
    )
    assert reply.status_code < 500


def _endless(name: str, value: Any) -> bool:
    return name == "follow" and str(value).lower() in ("1", "t", "true")
