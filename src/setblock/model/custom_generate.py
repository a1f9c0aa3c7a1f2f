"""Write the code that a checkpoint carries: a few lines through which Transformers' `generate` finds this package.

No list of requirements goes with it. Transformers would refuse by that list even to load the model, which needs none of this.
"""

from pathlib import Path

CUSTOM_GENERATE = '''"""Set block decoding: `model.generate(..., custom_generate=CHECKPOINT, trust_remote_code=True)`."""


def generate(*args, **kwargs):  # type: ignore[no-untyped-def]
    """See `setblock.integrations.transformers.generate`."""
    try:
        from setblock.integrations.transformers import generate as generate_in_blocks
    except ModuleNotFoundError as error:
        raise ImportError("decoding this checkpoint in blocks needs setblock: pip install setblock") from error
    return generate_in_blocks(*args, **kwargs)
'''


def write_custom_generate(checkpoint: Path) -> None:
    """Write `custom_generate/generate.py` into a checkpoint."""
    path = checkpoint / "custom_generate" / "generate.py"
    path.parent.mkdir()
    path.write_text(CUSTOM_GENERATE)
