"""The playground: nothing from outside, nothing that a model wrote taken for markup, and its use in a real browser."""

import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

import setblock.server.app
from families import tiny_model
from server.live import TIMEOUT, eventually, serving
from setblock import load
from setblock.model.sbd_model import SBDModel
from setblock.server.http.access import Keys

FOLDER = Path(setblock.server.app.__file__).parent / "page"
FILES = sorted(FOLDER.iterdir())
WIDTHS = {"phone": (390, 844), "tablet": (820, 1100), "desk": (1280, 900)}
PROBLEM = "Ben has 30 cards. Ben loses 9 of them. How many cards does Ben have now?"
NOTICE = "Knows `word problems` only."


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_served_and_names_no_other_site(live, path):
    response = live.client.get(f"/page/{path.name}")
    assert response.content == path.read_bytes()
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(r"https?://[^\"')\s]+", path.read_text())) <= {"http://www.w3.org/2000/svg"}


def test_text_is_never_markup():
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert way not in text, f"{path.name}: {way}"
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"\son\w+=|style=|<script>(?!</)", html)


def test_every_control_has_a_label():
    html = (FOLDER / "index.html").read_text()
    labelled = set(re.findall(r'<label[^>]* for="(\w+)"', html))
    inside = re.findall(r"<label(?![^>]* for=)[^>]*>.*?</label>", html, flags=re.S)
    for name in re.findall(r'<(?:input|select|textarea) id="([\w-]+)"', html):
        assert name in labelled or any(f'id="{name}"' in label for label in inside), name


def test_the_page_has_the_model_s_card(live):
    with serving(live.model, example="Add 1 and 2.", notice=NOTICE) as other:
        sbd_config = other.client.get("/v1/models").json()["data"][0]["setblock"]
        assert (sbd_config["example"], sbd_config["notice"]) == ("Add 1 and 2.", NOTICE)
    sbd_config = live.client.get("/v1/models").json()["data"][0]["setblock"]
    assert (sbd_config["example"], sbd_config["notice"]) == (None, None)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="module")
def bundled():
    with serving(load(device="cpu"), name="word-problems", example=PROBLEM, notice=NOTICE) as live:
        yield live


@contextmanager
def opened(browser, live, *, width="desk", scheme="light", complaints=0):
    """A page that must not complain, nor ask another host, nor be wider than the screen."""
    size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    is_phone = width == "phone"
    context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=is_phone, is_mobile=is_phone)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    console, outside = [], []
    page.on("console", lambda line: console.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: console.append(str(error)))
    page.on("request", lambda requested: None if requested.url.startswith(live.url) else outside.append(requested.url))
    try:
        page.goto(live.url)
        page.locator("#model").get_by_text(live.serving.config.name, exact=True).wait_for()
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert (len(console), outside) == (complaints, []), console
    finally:
        context.close()


def asks(page):
    """The bodies that the page sends from now on."""
    bodies = []
    page.on(
        "request",
        lambda requested: bodies.append(json.loads(requested.post_data)) if requested.method == "POST" else None,
    )
    return bodies


def answered(page):
    page.locator("#go:not([hidden])").wait_for()


@pytest.mark.parametrize(("width", "scheme"), [("phone", "dark"), ("tablet", "light"), ("desk", "light")])
def test_a_comparison_from_the_sample_to_its_replay(browser, bundled, tmp_path, width, scheme):
    with opened(browser, bundled, width=width, scheme=scheme) as page:
        assert page.locator("#notice code").inner_text() == "word problems"
        page.locator("#sample").click()
        page.locator(".verdict b").filter(has_text="times fewer").wait_for()
        answered(page)
        mine, plain = page.locator(".answer").all()
        passes = [int(lane.locator("h3 span").inner_text().split()[0]) for lane in (mine, plain)]
        assert passes[0] < passes[1]
        assert re.search(r" · \d+ of \d+ drafted tokens kept$", mine.locator("h3 span").inner_text())
        assert "drafted" not in plain.locator("h3 span").inner_text()
        assert mine.locator(".token").count() > 5
        assert plain.locator(".token").count() == 0  # each pass one token: colours would say nothing
        texts = [lane.locator(".tokens").inner_text() for lane in (mine, plain)]
        assert texts[0] == texts[1]
        assert "#### 21" in texts[0]
        # Replay: at the beginning little is there, at the end all of it
        slider = page.get_by_role("slider", name="Pass")
        slider.fill("1")
        assert mine.locator(".token").count() < passes[1]
        slider.fill(str(passes[1]))
        assert mine.locator(".tokens").inner_text() == texts[0]
        slider.fill(str(min(passes) - 1))
        # The prompt is at the bottom of the screen, whole, below what was answered
        box, (across, down) = page.locator("#box").bounding_box(), WIDTHS[width]
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= across
        assert down - 40 <= box["y"] + box["height"] <= down
        for name in ("#go", "#clear"):
            button = page.locator(name).bounding_box()
            assert button["x"] + button["width"] <= box["x"] + box["width"]
        picture = Path(os.environ.get("SETBLOCK_SCREENSHOTS", tmp_path)) / f"compare-{width}-{scheme}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 10_000


SCROLLED = """[...document.querySelectorAll("*")].filter(each => each.scrollHeight > each.clientHeight + 1
    && ["auto", "scroll"].includes(getComputedStyle(each).overflowY)).map(each => each.id || each.className)"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_passes_crosses_out_what_was_discarded(browser, bundled, width):
    with opened(browser, bundled, width=width) as page:
        page.locator("#prompt").fill(PROBLEM.replace("Ben", "Priya"))  # a name that it never saw: drafts are wrong
        page.locator("#go").click()
        page.locator(".verdict b").wait_for()
        answered(page)
        for each in page.locator("details.passes > summary").all():
            each.click()
        mine = page.locator(".answer").first
        tokens = int(re.search(r"(\d+) tokens", mine.locator("h3 span").inner_text())[1])
        assert mine.locator("td .rejected").count() > 0
        kept = mine.locator("td span:not(.rejected)").all_text_contents()
        assert len(kept) == tokens
        text = mine.locator(".tokens").inner_text().removesuffix("end")
        assert "".join("".join(kept[:-1]).split()) == "".join(text.split())
        assert mine.locator(".token.rejected").count() == 0
        slider, shown = page.get_by_role("slider", name="Pass"), []
        for number in range(int(slider.get_attribute("max"))):
            slider.fill(str(number))
            shown.append(mine.locator(".token.rejected").count())
        assert max(shown) > 0
        # Words stay whole, and the page alone scrolls
        row, heads = page.locator(".passes tbody tr").first, page.locator(".passes thead th").all()
        assert all(head.bounding_box()["height"] < 1.5 * row.bounding_box()["height"] for head in heads)
        assert page.evaluate(SCROLLED) == []


def test_enter_sends_and_shift_enter_begins_a_line(browser, bundled):
    with opened(browser, bundled) as page:
        bodies = asks(page)
        page.keyboard.type("Ben has 3 cards.")  # the prompt has the focus
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("<b>How many</b>?")
        page.keyboard.press("Enter")
        page.locator(".verdict b").wait_for()
        assert page.locator(".said").inner_text() == "Ben has 3 cards.\n<b>How many</b>?"
        assert page.locator("#prompt").input_value() == ""
        assert [body["method"] for body in bodies] == ["exact", "ntp"]
        page.keyboard.press("Enter")  # nothing is nothing
        assert page.locator(".turn").count() == 1


def test_on_a_touch_keyboard_enter_begins_a_line(browser, bundled):
    with opened(browser, bundled, width="phone") as page:
        assert not page.locator("#method").is_visible()  # the settings are folded
        page.locator("#prompt").tap()
        page.keyboard.type("a")
        page.keyboard.press("Enter")
        page.keyboard.type("b")
        assert page.locator("#prompt").input_value() == "a\nb"
        page.locator("#go").tap()
        page.locator(".verdict b").wait_for()
        page.locator("#side > summary").tap()
        chosen = page.locator("#method").evaluate("each => each.clientWidth >= each.scrollWidth")
        assert chosen  # whole, not cut


def test_only_what_was_chosen_is_requested(browser, bundled):
    """The server chooses the rest: it knows which block size pays."""
    with opened(browser, bundled) as page:
        bodies = asks(page)
        page.get_by_text("Chat", exact=True).click()
        page.locator("#sample").click()
        page.locator(".answer .end").wait_for()
        answered(page)
        body = bodies[-1]
        assert (body["method"], body["temperature"], body["max_tokens"]) == ("exact", 0, 300)
        assert not {"block_size", "gamma", "structured_outputs"} & set(body)
        page.locator("#method").select_option("sbd")
        page.locator("#block").select_option("8")
        page.locator("#gamma").select_option("0.1")
        page.locator("#most").fill("")
        page.locator("#prompt").fill(PROBLEM)
        page.keyboard.press("Enter")
        page.locator(".answer").nth(1).locator(".end").wait_for()
        assert (bodies[-1]["method"], bodies[-1]["block_size"], bodies[-1]["gamma"]) == ("sbd", 8, 0.1)
        assert "max_tokens" not in bodies[-1]
        page.locator("#method").select_option("ntp")
        assert not page.locator("#block").is_visible()


def test_a_model_that_was_not_trained_is_offered_what_it_can_do(browser, tokenizer):
    model = SBDModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer)
    with serving(model) as live, opened(browser, live) as page:
        assert not page.locator("#block").is_visible()
        assert not page.locator("#gamma").is_visible()
        sbd = page.locator("#method option[value=sbd]")
        assert sbd.is_disabled()
        assert sbd.inner_text() == "sbd (not trained for blocks)"
        assert "needs a model that was trained for blocks" in page.locator("#method-note").inner_text()
        assert not page.locator("#sample").is_visible()
        assert not page.locator("#notice").is_visible()


def test_an_answer_can_be_stopped(browser, live):
    with opened(browser, live) as page:
        page.locator("#method").select_option("ntp")
        page.locator("#temperature").fill("2")
        page.locator("#most").fill("450")
        page.keyboard.press("Escape")
        page.locator("#prompt").fill("Tom")
        page.locator("#go").click()
        page.locator("#stop").click()
        page.get_by_role("status").filter(has_text="Stopped.").wait_for()
        answered(page)
        assert eventually(lambda: live.serving.worker.figures.running == 0)


def test_an_error_is_reported_and_the_prompt_is_kept(browser, live):
    with opened(browser, live, complaints=1) as page:  # Chromium's own, of the status
        page.get_by_text("Chat", exact=True).click()
        page.locator("#form-box > summary").click()
        page.locator("#schema").fill("{")
        page.locator("#prompt").fill("Tom has 3")
        page.locator("#go").click()
        page.get_by_role("alert").filter(has_text="structured_outputs").first.wait_for()
        assert page.locator("#prompt").input_value() == "Tom has 3"
        assert page.locator("#go").is_visible()


def test_a_key_is_requested(browser, served_model):
    with serving(served_model, keys=Keys(["a-key-of-mine"])) as live:
        page = browser.new_page()
        page.goto(live.url)
        page.get_by_text("needs an API key", exact=True).wait_for()
        page.keyboard.type("a-key-of-mine")  # its field has the focus
        page.keyboard.press("Enter")
        page.locator("#model").get_by_text("tiny", exact=True).wait_for()
        page.locator("#prompt").fill("Tom")
        page.keyboard.press("Enter")
        page.locator(".verdict b").wait_for()
        page.close()


def test_a_long_prompt_and_a_long_answer_stay_on_the_page(browser, live):
    with opened(browser, live, width="phone") as page:
        page.locator("#prompt").fill("averylongword" * 12)
        assert page.locator("#prompt").bounding_box()["height"] <= 0.5 * WIDTHS["phone"][1]
        page.locator("#side > summary").tap()
        page.locator("#most").fill("250")
        page.locator("#side > summary").tap()
        page.locator("#go").tap()
        page.locator(".verdict b").wait_for()
        assert page.locator("#box").is_visible()


def test_a_chat_shows_markup_as_text(browser, bundled):
    with opened(browser, bundled) as page:
        page.get_by_role("radio", name="Chat").check(force=True)
        bodies = asks(page)
        for number, text in enumerate(("<img src=x onerror=alert(1)> has 3 cards.", "And 4 more?"), start=1):
            page.locator("#prompt").fill(text)
            page.locator("#go").click()
            page.locator(".answer").nth(number - 1).locator(".tokens[aria-busy=false]").wait_for()
            answered(page)
            assert page.locator(".said").nth(number - 1).inner_text() == text
        assert page.locator("#log img").count() == 0
        assert [message["role"] for message in bodies[-1]["messages"]] == ["user", "assistant", "user"]
        page.locator("#clear").click()
        assert page.locator(".turn").count() == 0
        assert page.locator("#welcome").is_visible()


@pytest.mark.parametrize(
    ("tokens", "text", "parts"),
    [
        (["Then", " Ben", "."], "Then Ben.", ["Then", " Ben", "."]),
        (["Then", "Ben", "."], "Then Ben.", ["Then", " Ben", "."]),  # decoded alone, a word may lose its space
        (["a ", "\ufffd", "\ufffd", " b"], "a \U0001f600 b", ["a", " \U0001f600", "", " b"]),
        (["x", "\ufffd", "\ufffd"], "x\U0001f600", ["x", "\U0001f600", ""]),
        (["a", "\n", "\n", "b"], "a\n\nb", ["a", "\n", "\n", "b"]),
        (["a", "c"], "a b", ["a", "c"]),  # of another text: as they are
    ],
)
def test_tokens_are_shown_as_parts_of_the_answer(browser, live, tokens, text, parts):
    """A token may be half a character."""
    with opened(browser, live) as page:
        requested = [[{"text": each} for each in tokens], text]
        found = page.evaluate("async given => (await import('/page/answer.js')).partsOf(...given)", requested)
        assert "".join(found) == "".join(parts)
        assert len(found) == len(tokens)
        assert not any("\ufffd" in each for each in found)
