"""Show one row of a recipe's data, doubled and noised as the trainer would in its first step.

Knows recipes, rows and the doubled input. Knows nothing of how it is shown.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.rows import rows_of
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.facts import read_facts
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator, drawn_block_size
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.recipe import Recipe
from setblock.training.run.train import context_length_of, starting_tokenizer


@dataclass(frozen=True)
class InspectedRow:
    """Hold a row of L tokens and its noisy half of N, T = L + N.

    Attributes:
        labels: int [L], the row's labels.
        inputs: the doubled input, batch of 1.
        predicts: int [T], the token that each output learns to predict, -1 where it learns nothing.
        mask_token_id: represents the mask token in `inputs`; an id that no token has.
        block_size: k of the noisy half; None where the objective is `ntp`.
        where: the record of each of the row's documents.
        statistics: of all rows: the fields of `Census`, how many `rows`, and the share of them that is `padding`.
    """

    tokenizer: PreTrainedTokenizerBase
    index: int
    labels: np.ndarray
    inputs: TrainingInputs
    predicts: np.ndarray
    mask_token_id: int
    block_size: int | None
    where: list[str]
    statistics: dict[str, Any]


def inspected_row(recipe: Recipe, args: SBDConfig, *, row: int, evaluation: bool = False) -> InspectedRow:
    """Read a recipe's data, and double and noise one row of it. Raise `ParameterError` if there is no such row, and
    `SetBlockError` if the model's tokenizer can't be loaded, or the data can't be read."""
    # 1. The rows
    config, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    facts, context_length = read_facts(config), context_length_of(config)
    both = rows_of(
        recipe.data,
        tokenizer,
        DocumentLimits(
            context_length,
            vocabulary=max(config.get_text_config().vocab_size, len(tokenizer)),
            mask_token_id=facts.mask_token_id if facts else None,
        ),
    )
    rows = both.evaluation if evaluation else both.train
    if rows is None:
        raise SetBlockError("the recipe has no data to evaluate on: set data.evaluation or data.evaluation_fraction")
    if row >= len(rows):
        raise ParameterError(f"--row must be in 0..{len(rows) - 1}, not {row}")
    assert isinstance(rows.rows, CorpusRows)

    # 2. As the first step doubles it
    mask_token_id = 1 + max(config.get_text_config().vocab_size, len(tokenizer))
    collator = SBDCollator(
        args, mask_token_id=mask_token_id, end_of_text_id=tokenizer.eos_token_id, context_length=context_length
    )
    block_size = drawn_block_size(args, step=0, max_steps=args.max_steps)
    batch = collator.rows([rows[row]])
    inputs = collator.inputs(batch, step=0, block_size=block_size)
    predicts = np.full(inputs.input_ids.shape[1], -1)
    for targets in (inputs.ntp, inputs.matp):
        predicts[targets.index.numpy()] = targets.token_ids.numpy()
    return InspectedRow(
        tokenizer=tokenizer,
        index=row,
        labels=batch["labels"][0].numpy(),
        inputs=inputs,
        predicts=predicts,
        mask_token_id=mask_token_id,
        block_size=None if args.objective == "ntp" else block_size,
        where=rows.rows.where(row),
        statistics={**vars(rows.rows.census), "rows": len(rows), "padding": rows.rows.padding},
    )
