"""`setblock generate --trace`: its passes are those of the answer."""

import json
import re

import pytest

from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.evaluation.tracing import trace
from setblock.model.loading.loading import load

SHORT = ("--max-new-tokens", 20)


@pytest.fixture(scope="module")
def model(sbd_folder):
    return load(sbd_folder)


@pytest.mark.parametrize("settings", [{}, {"method": "exact"}, {"method": "ntp"}, {"block_size": 4}])
def test_replaying_the_passes_gives_the_answer(model, settings):
    settings = DecodingSettings(**{"method": "sbd", "max_new_tokens": 24, "drafts": "fixed", **settings})
    traced, answer = (
        trace(model, "Tom has 5 pens.", settings=settings),
        generate(model, "Tom has 5 pens.", settings=settings),
    )
    standing = {}
    for number, each in enumerate(traced.passes):
        assert each.number == number
        for index in each.dropped:
            del standing[index]
        if each.corrected is not None:
            assert not [index for index in standing if index > each.corrected.index]
            standing[each.corrected.index] = each.corrected
        for token in each.revealed:
            assert token.index not in standing  # nothing is revealed twice
            standing[token.index] = token
        assert not {place for place, _ in each.masked} & standing.keys()
        assert all(entropy >= 0 for _, entropy in each.masked)
    count = answer.num_tokens
    assert [standing[index].text for index in range(count)] == traced.tokens
    assert [standing[index].entropy for index in range(count)] == pytest.approx(answer.entropy)
    assert traced.text == answer.text
    kinds = [each.kind for each in traced.passes]
    assert kinds.count("prefill") == answer.passes.prefill == 1
    assert kinds.count("commit") == answer.passes.commit
    assert kinds.count("block") + kinds.count("token") == answer.passes.block
    starts = [each.start for each in traced.passes]
    assert starts == sorted(starts)  # what is committed stays so


def test_json(run, sbd_folder):
    result = json.loads(run("generate", "Tom", "--trace", "--model", sbd_folder, "--json", *SHORT).stdout)
    assert {"prompt", "text", "tokens", "method", "block_size", "passes", "sampler"} <= result.keys()
    first = result["passes"][0]
    assert first["kind"] == "prefill"
    assert {"number", "start", "size", "revealed", "masked", "corrected"} <= first.keys()
    assert {"index", "text", "entropy", "is_end"} == first["revealed"][0].keys()


def test_the_terminal_lists_the_passes_without_colour_too(run, sbd_folder):
    outcome = run("generate", "Tom\x1b[31m has", "--trace", "--gamma", 1, "--model", sbd_folder, *SHORT)
    assert "\x1b" not in outcome.stdout
    assert re.search(r"^prefill  1 revealed at \d+\.\d\d nats$", outcome.stdout, re.MULTILINE)
    assert re.search(r"^pass 1   commit \d+ revealed at .* masked at ", outcome.stdout, re.MULTILINE)
    assert "commit" in outcome.stdout
    assert re.search(r"20 tokens, \d+ forwards, \d", outcome.stdout)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--n", 2), "--trace shows one answer: --n must be 1, not 2"),
        (("--input", "a", "--output", "b"), "without PROMPT and --trace"),
    ],
)
def test_what_does_not_go_together(run, sbd_folder, options, said):
    assert said in run("generate", "Tom", "--trace", "--model", sbd_folder, *options).message
