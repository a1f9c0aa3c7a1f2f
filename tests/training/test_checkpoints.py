from pathlib import Path
from typing import Any

import pytest

from setblock.errors import SetBlockError
from setblock.training.recipe import Recipe
from setblock.training.run.checkpoints import check_run, claim, recorded_recipe


def recipe(documents: int = 10, **training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "model": {"path": "base"},
            "data": {"source": "word-problems", "documents": documents},
            "training": {"seed": 1, **training},
        }
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
    for check in (claim, check_run):
        with pytest.raises(SetBlockError, match=r"training\.learning_rate None, not 0\.1"):
            check(tmp_path, recipe(learning_rate=0.1))


def test_a_finished_run_is_that_of_its_recipe(tmp_path: Path) -> None:
    """Whose data nobody has read again."""
    check_run(tmp_path, recipe())  # a model that no run has left
    claim(tmp_path, recipe(), documents="0123", global_batch_size=8)
    check_run(tmp_path, recipe(save_steps=9))


@pytest.mark.parametrize(
    "data",
    [
        {"source": "word-problems", "documents": 10},
        {"mixture": [{"source": "a.jsonl", "weight": 3.0}, {"source": "b.jsonl"}], "row_length": 64},
    ],
    ids=["problems", "mixture"],
)
def test_the_recipe_of_a_run_can_be_read_again(tmp_path: Path, data: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(
        {"model": {"path": "base"}, "data": data, "training": {"block_sizes": [4], "seed": 1}}
    )
    assert recorded_recipe(tmp_path) is None
    claim(tmp_path, recipe, documents="0123")
    found = recorded_recipe(tmp_path)
    assert found is not None
    assert found[0].data == recipe.data
    assert (found[1].block_sizes, found[1].seed, found[1].output_dir) == ([4], 1, str(tmp_path))
    (tmp_path / "recipe.json").write_text("[]")
    with pytest.raises(SetBlockError, match="is not the record of a run"):
        recorded_recipe(tmp_path)
