"""Pages are written in plain English: short sentences, usual words, no page longer than a person reads at once."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROSE = runpy.run_path(str(ROOT / "docs" / "_site" / "prose.py"))
MOST_WORDS = 1800
EVIDENCE = {"results.md", "performance.md", "log.md", "serving_load.md", "vllm_compare.md"}
"""Pages that a person looks something up in: they may be long."""

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short_and_words_plain(page):
    prose = PROSE["prose_of"](page.read_text())
    assert prose.too_long == []
    assert prose.avoided == []
    assert prose.mean <= PROSE["MEAN"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in EVIDENCE], ids=lambda page: page.name)
def test_pages_are_short(page):
    assert len(page.read_text().split()) <= MOST_WORDS


def test_a_long_sentence_is_found():
    prose = PROSE["prose_of"](" ".join(["word"] * 36) + ". A short one.")
    assert (prose.lengths, len(prose.too_long)) == ([36, 3], 1)


@pytest.mark.parametrize(
    "sentence", ["It is less dear.", "It is told below.", "It has a page of its own.", "What a pass is worth."]
)
def test_avoided_words_are_found(sentence):
    assert len(PROSE["prose_of"](sentence).avoided) == 1


def test_code_tables_links_and_comments_are_left_out():
    page = (
        "# dear\n\n<!-- dear -->\n\n```bash\ndear\n```\n\n| dear |\n|---|\n\n"
        "The `dear` option [is plain](dear.md). Then this.\n"
    )
    assert PROSE["prose_of"](page).sentences == ("The `code` option is plain.", "Then this.")


def test_items_of_a_list_are_sentences():
    assert PROSE["prose_of"]("- one thing\n- another thing\n").sentences == ("one thing", "another thing")
