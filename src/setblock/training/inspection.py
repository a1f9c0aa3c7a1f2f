"""One row of a recipe's data, doubled and noised as in the trainer's first step, for `setblock data inspect`."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.data.corpus.corpus import DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.data.packing import IGNORE, RowDataset, as_batch
from setblock.errors import ParameterError, SetBlockError
from setblock.model.attention.attention import has_state
from setblock.model.loading.loading import load_generation_config
from setblock.model.protocol.sbd_config import read_sbd_config
from setblock.model.sbd_model import end_of_text_ids_of, with_closing_ids
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator, drawn_block_size
from setblock.training.recipe import Recipe
from setblock.training.run.train import context_length_of, starting_tokenizer


def inspected_row(
    recipe: Recipe, args: SBDConfig, *, row: int, evaluation: bool = False
) -> tuple[dict[str, Any], PreTrainedTokenizerBase]:
    """Read a recipe's data, and double and noise one row of it. Return what `setblock data inspect --json` prints, and the
    tokenizer. None is no label, nothing that an output learns, and the mask token. Raise `ParameterError` if there is no such
    row, and `SetBlockError` if the model's tokenizer can't be loaded, or the data can't be read."""
    # 1. The rows
    config, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    if has_state(config):
        raise SetBlockError(
            f"{config.model_type} keeps a recurrent state, and is trained on rows of one block, which can't be shown: inspect "
            "the data with another model"
        )
    sbd_config, context_length = read_sbd_config(config), context_length_of(config)
    vocabulary = max(config.get_text_config().vocab_size, len(tokenizer))
    forbidden = sbd_config.mask_token_id if sbd_config else None
    limits = DocumentLimits(context_length, vocabulary=vocabulary, mask_token_id=forbidden)
    rows = rows_of(recipe.data, tokenizer, limits).get("evaluation" if evaluation else "train")
    if rows is None:
        raise SetBlockError("the recipe has no data to evaluate on: set data.evaluation or data.evaluation_fraction")
    if row >= len(rows):
        raise ParameterError(f"--row must be in 0..{len(rows) - 1}, not {row}")

    # 2. As the first step doubles it
    generation = None if recipe.model.path is None else load_generation_config(recipe.model.path)
    ends = with_closing_ids(end_of_text_ids_of(generation, config.get_text_config(), tokenizer), tokenizer)
    mask_token_id, end_of_text_id = 1 + vocabulary, ends[0]
    noise_ids = range(mask_token_id, mask_token_id + 1)
    collator = SBDCollator(args, noise_ids, end_of_text_id=end_of_text_id, context_length=context_length)
    block_size = drawn_block_size(args, step=0, max_steps=args.max_steps)
    batch = as_batch([RowDataset(rows)[row]], pad_token_id=end_of_text_id)
    inputs = collator.inputs(batch, step=0, block_size=block_size)
    predicts = torch.full((inputs.input_ids.shape[1],), -1)
    for targets in (inputs.ntp, inputs.matp):
        predicts[targets.index] = targets.token_ids

    # 3. As lists, of the clean half and of the noisy one
    def known(values: Tensor, nothing: int) -> list[int | None]:
        return [None if value == nothing else value for value in values.tolist()]

    def half(here: slice) -> dict[str, list[int | None]]:
        return {
            "input_ids": known(inputs.input_ids[0, here], mask_token_id),
            "document_ids": inputs.document_ids[0, here].tolist(),
            "position_ids": inputs.position_ids[0, here].tolist(),
            "predicts": known(predicts[here], -1),
        }

    clean, noisy = slice(*inputs.columns("clean")), slice(*inputs.columns("noisy"))
    of_blocks = {"block_starts": inputs.limits[0, noisy].tolist(), "block_ids": inputs.block_ids[0, noisy].tolist()}
    shown = {
        "row": row,
        "block_size": None if args.objective == "ntp" else block_size,
        "where": rows.where(row),
        "clean": half(clean) | {"labels": known(batch["labels"][0], IGNORE)},
        "noisy": None if args.objective == "ntp" else half(noisy) | of_blocks,
        "statistics": {**vars(rows.census), "rows": len(rows), "padding": rows.padding},
    }
    return shown, tokenizer
