"""docs/data.md: its recipes are valid. Its commands run in tests/test_guides.py."""

import re
from pathlib import Path

import pytest

from setblock.data.section import DataSection
from setblock.training.recipe import load_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("recipe", blocks("yaml"))
def test_the_recipes_are_valid(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe)
    section = load_recipe(tmp_path / "recipe.yaml", overrides={"training.use_cpu": True})[0].data
    assert isinstance(section, DataSection)
