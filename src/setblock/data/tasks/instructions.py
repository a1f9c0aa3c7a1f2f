"""The task of everyday instructions: questions, summaries, rewriting, lists, letters, plans, comparisons. There are no
right answers.

The 200 of `setblock/data/instructions.jsonl` are for evaluation only: they have no answers, so no model is trained on them.
"""

import json
import random
from collections.abc import Iterator
from importlib.resources import files

from setblock.data.tasks.task import ChatExample, Split, Task


def instructions(split: Split, seed: int = 0) -> Iterator[ChatExample]:
    """Yield all instructions, in an order that the seed draws, so that the first few are of several kinds."""
    lines = files("setblock.data").joinpath("instructions.jsonl").read_text(encoding="utf-8").splitlines()
    random.Random(f"instructions-{seed}").shuffle(lines)
    for line in lines:
        yield ChatExample(json.loads(line)["instruction"])


TASKS = (Task("instructions", "200 everyday instructions", instructions, splits=("test",)),)
