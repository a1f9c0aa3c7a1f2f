from pathlib import Path
from typing import Any

import pytest

from setblock.errors import SetBlockError
from setblock.training.checkpoints import claim
from setblock.training.recipe import Recipe


def recipe(documents: int = 10, **training: Any) -> Recipe:
    return Recipe.model_validate(
        {"model": {"path": "base"}, "data": {"documents": documents}, "training": {"seed": 1, **training}}
    )


def test_a_run_goes_on_with_its_own_recipe(tmp_path: Path) -> None:
    claim(tmp_path, recipe())
    claim(tmp_path, recipe())
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]


@pytest.mark.parametrize("free", [{"logging_steps": 7}, {"save_steps": 9}, {"output_dir": "elsewhere"}])
def test_what_does_not_change_the_result_may_change(tmp_path: Path, free: dict[str, Any]) -> None:
    claim(tmp_path, recipe())
    claim(tmp_path, recipe(**free))


def test_another_recipe_is_refused_by_the_name_of_what_differs(tmp_path: Path) -> None:
    claim(tmp_path, recipe())
    with pytest.raises(SetBlockError, match=r"holds a run with data\.documents 10, not 20"):
        claim(tmp_path, recipe(documents=20))
    with pytest.raises(SetBlockError, match=r"training\.learning_rate None, not 0\.1"):
        claim(tmp_path, recipe(learning_rate=0.1))
