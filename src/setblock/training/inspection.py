"""Show one row of a recipe's data, doubled and noised as the trainer would in its first step.

Knows recipes, rows and the doubled input. Knows nothing of how it is shown.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.rows import rows_of
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.facts import read_facts
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator, drawn_block_size
from setblock.training.recipe import Recipe
from setblock.training.run.train import context_length_of, starting_tokenizer


def inspected_row(
    recipe: Recipe, args: SBDConfig, *, row: int, evaluation: bool = False
) -> tuple[dict[str, Any], PreTrainedTokenizerBase]:
    """Read a recipe's data, and double and noise one row of it.

    Returns:
        What JSON says of the row, and the tokenizer. `clean` and `noisy` are its halves, by column. None means no label,
        nothing to predict, and the mask token; and that there is no `noisy` half, where the objective is `ntp`. `where` is the
        record of each document. `statistics` are of all rows: the fields of `Census`, how many `rows`, and the share of
        `padding`.

    Raises:
        ParameterError: there is no such row.
        SetBlockError: the model's tokenizer can't be loaded, or the data can't be read.
    """
    # 1. The rows
    config, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    facts, context_length = read_facts(config), context_length_of(config)
    vocabulary = max(config.get_text_config().vocab_size, len(tokenizer))
    limits = DocumentLimits(context_length, vocabulary=vocabulary, mask_token_id=facts.mask_token_id if facts else None)
    both = rows_of(recipe.data, tokenizer, limits)
    rows = both.evaluation if evaluation else both.train
    if rows is None:
        raise SetBlockError("the recipe has no data to evaluate on: set data.evaluation or data.evaluation_fraction")
    if row >= len(rows):
        raise ParameterError(f"--row must be in 0..{len(rows) - 1}, not {row}")
    assert isinstance(rows.rows, CorpusRows)

    # 2. As the first step doubles it
    mask_token_id = 1 + vocabulary  # no token has it
    collator = SBDCollator(
        args, mask_token_id=mask_token_id, end_of_text_id=tokenizer.eos_token_id, context_length=context_length
    )
    block_size = drawn_block_size(args, step=0, max_steps=args.max_steps)
    batch = collator.rows([rows[row]])
    inputs = collator.inputs(batch, step=0, block_size=block_size)
    ids, labels = inputs.input_ids[0], batch["labels"][0]  # [T], [L]
    predicts = torch.full_like(ids, -1)
    for targets in (inputs.ntp, inputs.matp):
        predicts[targets.index] = targets.token_ids

    # 3. By half
    columns = {
        "input_ids": _known(ids, ids != mask_token_id),
        "document_ids": inputs.document_ids[0].tolist(),
        "position_ids": inputs.position_ids[0].tolist(),
        "predicts": _known(predicts, predicts >= 0),
    }
    of_blocks = {"block_starts": inputs.limits[0].tolist(), "block_ids": inputs.block_ids[0].tolist()}
    clean = {name: column[: len(labels)] for name, column in columns.items()}
    noisy = {name: column[len(labels) :] for name, column in (columns | of_blocks).items()}
    is_doubled = args.objective != "ntp"
    shown = {
        "row": row,
        "block_size": block_size if is_doubled else None,
        "where": rows.rows.where(row),
        "clean": clean | {"labels": _known(labels, labels >= 0)},
        "noisy": noisy if is_doubled else None,
        "statistics": {**vars(rows.rows.census), "rows": len(rows), "padding": rows.rows.padding},
    }
    return shown, tokenizer


def _known(values: Tensor, is_known: Tensor) -> list[int | None]:
    return [value if known else None for value, known in zip(values.tolist(), is_known.tolist(), strict=True)]
