"""`setblock trace`: what it tells is what happened, and its page is one safe file."""

import html.parser
import json
import re

import pytest

from setblock.decoding.generate import generate
from setblock.decoding.settings import DecodingSettings
from setblock.evaluation.trace_page import trace_page
from setblock.evaluation.tracing import trace
from setblock.model.loading import load

SHORT = ("--max-new-tokens", 20)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> @@TRACE@@ & \" ' \u2028 <!-- --> ${1}"


@pytest.fixture(scope="module")
def model(sbd_folder):
    return load(sbd_folder)


@pytest.mark.parametrize(
    "settings", [{}, {"method": "exact"}, {"method": "ntp"}, {"block_size": 4}, {"adaptive_blocks": True}]
)
def test_replaying_the_passes_gives_the_answer(model, settings):
    settings = DecodingSettings(**{"method": "sbd", "max_new_tokens": 24, **settings})
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
    result = json.loads(run("trace", "Tom", "--model", sbd_folder, "--json", *SHORT).stdout)
    assert {"prompt", "text", "tokens", "method", "block_size", "passes", "sampler"} <= result.keys()
    first = result["passes"][0]
    assert first["kind"] == "prefill"
    assert {"number", "start", "size", "revealed", "masked", "corrected"} <= first.keys()
    assert {"index", "text", "entropy", "is_end"} == first["revealed"][0].keys()


def test_the_terminal_lists_the_passes_without_colour_too(run, sbd_folder):
    outcome = run("trace", "Tom\x1b[31m has", "--model", sbd_folder, *SHORT)
    assert "\x1b" not in outcome.stdout
    assert re.search(r"^prefill  1 revealed at \d+\.\d\d nats$", outcome.stdout, re.MULTILINE)
    assert re.search(r"^pass 1   block  \d+ revealed at .* masked at ", outcome.stdout, re.MULTILINE)
    assert "commit" in outcome.stdout
    assert re.search(r"20 tokens, \d+ forwards, \d", outcome.stdout)


class Elements(html.parser.HTMLParser):
    """The start tags of a page with their attributes, and the texts inside each kind of element."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data):
        self.texts.setdefault(self._open, []).append(data)


def test_the_page_is_one_file_that_holds_texts_as_texts(model):
    traced = trace(model, HOSTILE, settings=DecodingSettings(method="sbd", max_new_tokens=20), raw=True)
    hostile = type(traced)(**{**vars(traced), "text": HOSTILE, "tokens": [HOSTILE]})
    page = trace_page(hostile)
    elements = Elements(page)
    names = [name for name, _ in elements.tags]
    assert names.count("script") == 2
    assert not {"img", "link", "iframe", "object"} & {*names}
    assert not any(
        key.startswith("on") or key in ("src", "href") for _, attributes in elements.tags for key in attributes
    )
    assert "http" not in page.replace("http-equiv", "")
    data = json.loads(elements.texts["script"][0])
    assert (data["prompt"], data["text"]) == (HOSTILE, HOSTILE)
    assert data["passes"] == json.loads(json.dumps(hostile.to_json()))["passes"]
    assert [text for text in elements.texts["pre"] if "alert" in text] == [HOSTILE, HOSTILE]
    assert "@@" not in page.replace("@@TRACE@@", "")


def test_only_the_pages_own_script_may_run(model):
    import base64
    import hashlib

    page = trace_page(trace(model, "Tom", settings=DecodingSettings(method="sbd", max_new_tokens=8)))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert "innerHTML" not in script


def test_each_pass_is_told_in_words(model):
    traced = trace(model, "Tom", settings=DecodingSettings(method="exact", max_new_tokens=30))
    page = Elements(trace_page(traced))
    told = [text for text in page.texts["li"] if text.startswith(("Prefill (", "Pass "))]
    assert len(told) == len(traced.passes)
    assert told[0].startswith("Prefill (prefill, over the prompt). Revealed 1: ")
    assert any("Draft corrected at position" in text for text in told)  # a random model's drafts are wrong


def test_html_is_written_whole_or_not_at_all(run, sbd_folder, tmp_path):
    page = tmp_path / "out.html"
    outcome = run("trace", "Tom", "--model", sbd_folder, "--html", page, *SHORT)
    assert (outcome.code, outcome.stdout, outcome.message) == (0, "", f"setblock: wrote {page}")
    assert page.read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    refused = run("trace", "Tom", "--model", sbd_folder, "--html", tmp_path / "nowhere" / "out.html")
    assert refused.code == 1
    assert "there is no folder" in refused.message
