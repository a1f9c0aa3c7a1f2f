"""Pages are written in plain English: short sentences, usual words, no page longer than a person reads at once.

Docstrings begin with a verb.
"""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROSE = runpy.run_path(str(ROOT / "docs" / "_site" / "prose.py"))
MOST_WORDS = 1800
EVIDENCE = {"results.md", "performance.md", "log.md", "fewer_tokens.md"}
"""Pages that a person looks something up in: they may be long."""

WRITTEN = set((ROOT / "docs" / "reference").iterdir())
"""Pages that a script writes from the code."""

PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")} - WRITTEN
)

CODE = [
    path
    for folder in ("src", "docs", "benchmarks", "examples", "experiments", "tasks")
    for path in ROOT.glob(f"{folder}/**/*.py")
]
NOT_A_VERB = re.compile(
    r"(a|an|the|its|one|two|those|these|both|no|nothing|some|any|all|every|each|what|which|who|how|where|when|whether|why|"
    r"of|for|from|in|on|by|with|without|as|at|up|while|because|if|after|before|\w*[^s\W]s)\b|\W",
    re.IGNORECASE,
)
"""What begins a noun phrase or a fragment: articles, question words, prepositions, plurals (`Rows ...`), names in code."""


def docstrings(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "name", "module"), ast.get_docstring(node) or "See nothing."


@pytest.fixture(scope="module")
def written():
    """All docstrings, each with where it is."""
    return [(f"{path.relative_to(ROOT)}, {name}", text) for path in CODE for name, text in docstrings(path.read_text())]


def test_docstrings_begin_with_a_verb(written):
    """Also those of modules, classes and properties, which ruff's D401 leaves out."""
    assert {where: text.partition("\n")[0] for where, text in written if NOT_A_VERB.match(text)} == {}


def test_docstrings_have_plain_words(written):
    """The names that an `Args` section explains are code."""
    code = re.compile(r"^ +\w+:|`[^`]*`", re.MULTILINE)
    avoided = re.compile("|".join(f"(?:{pattern})" for pattern, _ in PROSE["WORDS"]), re.IGNORECASE)
    found = [(where, avoided.search(" ".join(code.sub("", text).split()))) for where, text in written]
    assert {where: f"{word[0]!r} in: {word.string}" for where, word in found if word} == {}


@pytest.mark.parametrize(
    "text", ["The rows.", "Rows of a batch.", "Whether it is.", "`f` is it.", "[B] bool.", "Of texts."]
)
def test_a_docstring_without_a_verb_is_found(text):
    assert [name for name, found in docstrings(f'def f():\n    """{text}"""') if NOT_A_VERB.match(found)] == ["f"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short_and_words_plain(page):
    prose = PROSE["prose_of"](page.read_text())
    assert prose.too_long == []
    assert prose.avoided == []
    assert prose.mean <= PROSE["MEAN"]


def test_pages_are_short():
    words = {page: len(page.read_text().split()) for page in PAGES if page.name not in EVIDENCE}
    assert {page: count for page, count in words.items() if count > MOST_WORDS} == {}


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
