"""Generated requests, valid and invalid, against the OpenAPI schema: no server errors, conforming responses."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]
MODES = {"valid": GenerationMode.POSITIVE, "invalid": GenerationMode.NEGATIVE}


@pytest.mark.parametrize("mode", MODES)
def test_generated_requests_conform_to_schema(address, mode):
    api = schemathesis.openapi.from_url(f"{address}/openapi.json")
    covered = set()
    for result in api.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if mode == "invalid" and not (operation.body or operation.path_parameters or operation.query):
            continue  # a route without parameters has no invalid requests

        @given(case=operation.as_strategy(generation_mode=MODES[mode]))
        @settings(
            max_examples=8,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        )
        def send_request(case):
            case.validate_response(case.call(), checks=CHECKS)
            covered.add(case.operation.label)

        send_request()
    assert {"POST /v1/search", "POST /v1/explain", "POST /v1/embeddings", "GET /v1/items/{item}"} <= covered
