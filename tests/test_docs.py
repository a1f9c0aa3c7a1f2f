"""The pages of docs/ say what the code does, where that can be checked."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

from setblock.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/evidence/*.md")])


def test_method_shows_the_masks_of_the_code():
    page = (ROOT / "docs" / "method.md").read_text()
    for name, figure in runpy.run_path(str(ROOT / "docs" / "figures.py"))["FIGURES"].items():
        assert f"```text\n{figure}\n```" in page, name


def test_pages_show_what_was_measured():
    """Each result has one whole table, and each summary one place."""
    tables = runpy.run_path(str(ROOT / "docs" / "performance_tables.py"))
    pages = [page.read_text() for page in tables["PAGES"]]
    for page in pages:
        assert tables["filled"](page) == page, "run python docs/performance_tables.py"
    shown = re.findall(r"^<!-- (\w+) -->$", "\n".join(pages), flags=re.MULTILINE)
    assert sorted(shown) == sorted({*tables["COMMANDS"], "gpu", *tables["SUMMARIES"]})


def test_a_gain_is_the_median_of_rounds_measured_side_by_side():
    gain = runpy.run_path(str(ROOT / "docs" / "performance_tables.py"))["gain"]
    plain = [{"tokens": 10, "seconds": seconds} for seconds in (1, 10, 2)]
    ours = [{"tokens": 10, "seconds": seconds} for seconds in (0.5, 2, 2)]
    rounds = [{"ways": {"plain": one, "adaptive": other}} for one, other in zip(plain, ours, strict=True)]
    assert gain(rounds) == 2  # of 2, 5 and 1: a slow round slows both ways


def test_a_gpu_s_stages_are_shown_where_they_were_measured():
    tables = runpy.run_path(str(ROOT / "benchmarks" / "measuring" / "tables.py"))
    piece = {"one token 1": {"model": {"median": 0.002}, "roofline": 0.001}}
    piece["one token 1"]["model"] |= {"lower_quartile": 0.001, "upper_quartile": 0.003}
    stages = {"passes": {"batch 1": piece, "batch 2": {"error": "no memory"}}, "growth": {}}
    assert tables["gpu_table"]({"stages": stages}) == (
        "**passes**\n\n|  | one token, ms | of the roofline |\n| --- | --- | --- |\n| batch 1 | 2.00 (1.00 to 3.00) | 50% |"
    )


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = [re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)]
    return {each.strip().replace(" ", "-") for each in words}


@pytest.mark.parametrize(
    "page", sorted({*PAGES, *ROOT.glob("docs/**/*.md")}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_somewhere(page):
    """In a clone, too, anchors included: the site checks only itself."""
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if not link.startswith(("http://", "https://")):
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{link}#{anchor}"


def commands_of(page):
    """The `setblock` commands of a page's fenced blocks, each as its words."""
    blocks = re.findall(r"^```(?:bash|text)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("setblock ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_commands_have_only_known_options(page):
    for words in commands_of(page):
        command, rest = typer.main.get_command(app), list(words)
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context("setblock", rest)  # raises a usage error
