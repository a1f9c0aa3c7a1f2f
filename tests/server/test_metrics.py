"""The metrics, against the usage that clients get."""

from prometheus_client.parser import text_string_to_metric_families

from server.live import serving


def test_metrics_count_what_was_done(served_model):
    with serving(served_model) as live:
        usage = live.chat(max_tokens=20, method="sbd", gamma=0.5).json()["usage"]
        live.chat(temperature=-1)
        live.client.get("/no/such/page")
        families = text_string_to_metric_families(live.client.get("/metrics").text)
        found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert found["setblock_generated_tokens_total",] == usage["completion_tokens"]
    assert found["setblock_answer_forwards_total",] == usage["num_forwards"]
    assert found["setblock_prompt_tokens_total",] == usage["prompt_tokens"]
    assert found["setblock_passes_total",] == usage["num_forwards"]
    assert found["setblock_time_to_first_token_seconds_count",] == 1
    assert found["setblock_revealed_tokens_per_pass_sum",] >= usage["completion_tokens"]
    assert found["setblock_tokens_per_forward_count", "sbd"] == 1
    assert found["setblock_http_requests_total", "/v1/chat/completions", "200"] == 1
    assert found["setblock_http_requests_total", "/v1/chat/completions", "400"] == 1
    assert found["setblock_http_requests_total", "other", "404"] == 1
    assert found["setblock_running_requests",] == 0


def test_metrics_count_what_drafts_gave(served_model):
    with serving(served_model) as live:
        usage = live.chat(max_tokens=40, method="exact", drafts="fixed").json()["usage"]
        families = text_string_to_metric_families(live.client.get("/metrics").text)
        found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    drafted, accepted = usage["num_drafted_tokens"], usage["num_accepted_tokens"]
    assert drafted > accepted >= 0
    assert found["setblock_draft_tokens_total",] == drafted
    assert found["setblock_accepted_tokens_total",] == accepted
    assert found["setblock_wasted_tokens_total",] == drafted - accepted
    assert accepted >= usage["completion_tokens"] - usage["num_forwards"]  # each pass gives one token more
