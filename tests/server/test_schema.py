"""The OpenAPI schema: it is served, and no request that it describes, or forbids, makes the server fail."""

import pytest

SCHEMA = "/openapi.json"


def test_every_route_is_described(live):
    schema = live.client.get(SCHEMA).json()
    assert set(schema["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}",
        "/health", "/ready", "/metrics",
    }  # fmt: skip
    for name in ("ChatBody", "CompletionBody"):
        properties = schema["components"]["schemas"][name]["properties"]
        assert {"gamma", "block_size", "method", "sampler", "events", "n"} <= set(properties)
        top_p = next(each for each in properties["top_p"]["anyOf"] if each["type"] == "number")
        assert (top_p["minimum"], top_p["maximum"]) == (0, 1)
    answers = schema["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"400", "401", "404", "413", "429", "503"} <= set(answers)


def test_generated_requests_never_make_the_server_fail(live):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_url(f"{live.url}{SCHEMA}")
    for operation in schema.get_all_operations():
        requested = operation.ok().as_strategy()

        @settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
        @given(case=requested)
        def holds(case):
            if isinstance(case.body, dict):
                case.body.update({"model": "tiny", "max_tokens": 4})
            case.call_and_validate(base_url=live.url, checks=[not_a_server_error])

        holds()
