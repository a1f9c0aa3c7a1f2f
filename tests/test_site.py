"""The site: the reference pages are written from the code, and every page has its place."""

import dataclasses
import json
import re
import runpy
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
import typer
import yaml
from transformers import TrainingArguments

from setblock.data.section import DataSection
from setblock.decoding.settings.table import DecodingSettings
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.recipe import ModelSection, Recipe

ROOT = Path(__file__).parent.parent


def hook(name):
    return runpy.run_path(str(ROOT / "docs" / "_site" / f"{name}.py"))


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose !ENV is MkDocs' own."""


Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node)[-1])
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages(entry):
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [page for value in values for page in pages(value)]


def test_every_page_has_one_place():
    placed = pages(CONFIG["nav"])
    assert len(placed) == len(set(placed))
    docs = ROOT / "docs"
    assert {str(page.relative_to(docs)) for page in docs.rglob("*.md")} <= set(placed)
    assert {f"notebooks/{each.stem}.md" for each in docs.glob("notebooks/*.ipynb")} <= set(placed)


def test_every_public_package_has_a_page():
    placed = pages(CONFIG["nav"])
    for package in hook("api")["PACKAGES"]:
        assert f"reference/{package}.md" in placed


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 256])
def test_the_picture_of_drafts_is_never_below_plain_decoding_or_far_below_the_best_fixed_length(rows):
    """On an H100's costs, learned from a simulated clock. Whole blocks are fed at small loads, and little at large ones."""
    picture = hook("drafts_picture")
    gain, tokens = picture["simulated"](rows, picture["adaptive"])
    fixed = [picture["simulated"](rows, picture["fixed"](size))[0] for size in picture["SIZES"]]
    assert gain >= max(0.98, 0.95 * max(fixed))
    assert tokens > 12 if rows <= 16 else tokens < 8


REFERENCE = hook("reference")


@pytest.mark.parametrize("page", REFERENCE["SCRIPTS"])
def test_the_committed_reference_is_what_the_code_says(page):
    kept = ROOT / "docs" / "reference" / page
    text = kept.read_text(encoding="utf-8") if kept.is_file() else ""
    assert text == REFERENCE["written"](page), "run python docs/_site/reference.py, and commit what it writes"


def test_command_line_has_every_option():
    from setblock.cli.app import app

    page = hook("command_line")["page"]()
    group = typer.main.get_command(app)
    assert "generate" in group.commands
    assert "<code>--dtype &lt;auto&#124;float32" in page
    assert "[[PROMPT]]" not in page
    assert "## setblock trace" not in page  # which is gone
    for name, command in group.commands.items():
        if command.hidden:
            continue
        assert f"## setblock {name}" in page
        options = (each for each in command.params if each.param_type_name == "option")
        for option in options:
            assert max(option.opts, key=len) in page


def test_recipe_keys_has_every_key():
    page = hook("recipe_keys")["page"]()
    sections = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert set(Recipe.model_fields) <= set(sections)
    for name, section in {"model": ModelSection, "data": DataSection, "adapter": AdapterSection}.items():
        for key, field in section.model_fields.items():
            assert f"| `{key}` |" in sections[name], key
            assert field.description or key.endswith("_column") or key == "evaluation", key
    training = page.partition("## training\n")[2]
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    for field in dataclasses.fields(SBDConfig):
        assert (f"| `{field.name}` |" in training) == (field.name not in theirs), field.name


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1, "1"), (1.0, "1.0"), (True, "true"), (False, "false"), (None, "null"), ("a", "a"), ((0.1,), "[0.1]")],
)
def test_recipe_keys_shows_defaults_as_yaml_has_them(value, shown):
    assert hook("recipe_keys")["shown"](value) == shown
    assert yaml.safe_load(shown) == (list(value) if isinstance(value, tuple) else value)


def test_recipe_keys_shows_types_as_a_reader_of_yaml_sees_them():
    type_name = hook("recipe_keys")["type_name"]
    assert type_name(Literal["sdpa", "eager"] | None) == "`'sdpa', 'eager' or null`"
    assert type_name(dict[str, Any] | None) == "`dict[str, Any] or null`"
    assert type_name(tuple[DataSection, ...]) == "`tuple[DataSection, ...]`"


def test_notebooks_show_their_code_and_what_it_printed():
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"output_type": "stream", "text": ["1\n"]}]},
        {"cell_type": "code", "source": ["x = 2"], "outputs": []},
    ]
    shown = hook("notebooks")["page"]({"cells": cells}, name="a.ipynb")
    assert shown.startswith("# Title\n")
    assert "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nx = 2\n```\n" in shown


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_with_their_output(path):
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= len(code) - 2  # cells that only define or write something print nothing
    assert [output for output in outputs if output["output_type"] != "stream"] == []


def test_the_picture_shows_every_token_once_and_hides_it_until_its_pass():
    picture = hook("blocks_picture")
    pieces = picture["pieces_by_pass"](["def", " f", "():", "\n", "    x", "x" * 60], [0, 1, 1, 2, 2, 3])
    assert {number: "".join(piece.text for piece in each) for number, each in pieces.items()} == {
        0: "def",
        1: " f():",
        2: "    x",
        3: "x" * 60,
    }
    assert [(piece.line, piece.column) for piece in pieces[2] + pieces[3]] == [(1, 0), (2, 0)]
    drawn = ElementTree.parse(ROOT / "docs" / "blocks.svg").getroot()
    text = "".join(drawn.itertext())
    groups = {each.get("class") for each in drawn.iter("{http://www.w3.org/2000/svg}g")}
    assert groups
    assert all(f".{each} {{ animation-name: {each} }}" in text for each in groups)


def test_settings_has_every_setting():
    page = hook("settings")["page"]()
    for field in dataclasses.fields(DecodingSettings):
        assert f"| `{field.name}` |" in page


@pytest.mark.parametrize(
    ("page", "target", "leads_to"),
    [
        ("index.md", "docs/exact.md#proof", "exact.md#proof"),
        ("exact.md", "../README.md#limits", "index.md#limits"),
        ("exact.md", "method.md", "method.md"),
        ("experiments/gamma.md", "../method.md", "../method.md"),
        ("recipes.md", "../recipes/a.yaml", "repository/recipes/a.yaml.md"),
        ("recipes.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("index.md", "docs/notebooks/a.ipynb", "notebooks/a.md"),
        ("notebooks/a.md", "b.ipynb", "b.md"),
        ("notebooks/a.md", "../method.md", "../method.md"),
    ],
)
def test_links_are_led_to_pages(page, target, leads_to):
    class Page:
        class file:  # noqa: N801
            src_uri = page

    assert hook("repository")["on_page_markdown"](f"[a]({target})", Page()) == f"[a]({leads_to})"
