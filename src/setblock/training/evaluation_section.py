"""Define the `evaluate_decoding` section of a recipe: what to decode every so often while a model is trained, and how.

Knows the keys and their valid values. Knows nothing of tasks or of decoding.
"""

from pydantic import Field

from setblock.section import Section


class DecodingEvaluationSection(Section):
    """Decode a few held-out examples periodically, one token a pass and in blocks, so that speed is seen to grow."""

    task: str = Field(
        "word-problems", description="a task of `setblock evaluate`; the evaluation uses its validation split"
    )
    allow_code_execution: bool = Field(  # a permission, and no part of what is trained
        False, exclude=True, description="run the programs that the model writes for a coding task"
    )
    limit: int = Field(32, ge=1, description="how many examples")
    every: int = Field(
        250, ge=1, description="optimiser steps between two evaluations; one comes before the first step"
    )
    gammas: tuple[float, ...] = Field((0.1,), min_length=1, description="entropy bounds to decode with")
    exact: bool = Field(True, description="also decode in method exact")
    block_size: int | None = Field(None, ge=1, description="null: the default of decoding")
    max_new_tokens: int | None = Field(None, ge=1, description="null: the default of decoding")
    batch_size: int = Field(32, ge=1, description="examples decoded at once")
