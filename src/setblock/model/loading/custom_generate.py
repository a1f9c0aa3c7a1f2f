"""Write the code that a checkpoint carries: a few lines through which Transformers' `generate` finds this package.

No list of requirements goes with it. Transformers would refuse by that list even to load the model, which needs none of this.
"""

import shutil
from pathlib import Path

from setblock.model.loading.bundled import BUNDLED_MODEL


def write_custom_generate(checkpoint: Path) -> None:
    """Write `custom_generate/generate.py` into a checkpoint, as the bundled model has it."""
    path = Path("custom_generate", "generate.py")
    (checkpoint / path).parent.mkdir()
    shutil.copyfile(BUNDLED_MODEL / path, checkpoint / path)
