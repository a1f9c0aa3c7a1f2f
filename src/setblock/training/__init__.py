"""Train an ordinary causal LM to decode in blocks (docs/training.md)."""

from typing import TYPE_CHECKING

from setblock.errors import check_installed
from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.training.config import SBDConfig
    from setblock.training.recipe import Recipe, load_recipe
    from setblock.training.trainer.trainer import SBDTrainer

check_installed("training", "accelerate", "datasets")

__all__ = ["Recipe", "SBDConfig", "SBDTrainer", "load_recipe"]

__getattr__, __dir__ = lazily(
    __name__, {"config": "SBDConfig", "recipe": "Recipe load_recipe", "trainer.trainer": "SBDTrainer"}
)
