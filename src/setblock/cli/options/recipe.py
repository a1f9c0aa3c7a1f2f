"""Read the recipe of a command: its file, and values to replace in it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.cli.messages import silence_libraries
from setblock.cli.options.groups import argument, option_group, optional
from setblock.errors import check_installed

if TYPE_CHECKING:
    from setblock.training.config import SBDConfig
    from setblock.training.recipe import Recipe


@option_group()
class RecipeOptions:
    """Hold which recipe, and what is replaced in it."""

    recipe: Path = argument(..., "A YAML file; the folder recipes/ of the repository has examples.", "RECIPE")
    overrides: list[str] | None = optional(
        "Replace a value of the recipe, such as training.learning_rate=1e-4. Can be repeated.",
        "--set",
        metavar="SECTION.KEY=VALUE",
    )

    def __post_init__(self) -> None:
        check_installed("training", "accelerate", "datasets")

    def load(self, **values: Any) -> "tuple[Recipe, SBDConfig]":
        """Read and check it, with libraries silenced, and further `values` replaced, by their dotted keys. Raise
        `SetBlockError` if the file can't be read, or a key or value in it is not valid."""
        from setblock.training.recipe import load_recipe, parse_override

        silence_libraries()
        if not sys.stderr.isatty():
            from datasets import disable_progress_bars

            disable_progress_bars()
        return load_recipe(self.recipe, overrides=dict(map(parse_override, self.overrides or [])) | values)
