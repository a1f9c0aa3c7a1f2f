"""Recipe in, checkpoint out: model + data + trainer."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    set_seed,
)

from setblock.data.packing import RowCollator
from setblock.data.rows import corpus_texts, rows_of, use_chat_template
from setblock.data.section import DataSection
from setblock.data.tokenizer import train_tokenizer
from setblock.errors import SetBlockError
from setblock.model.loading import NotTrainedForBlocks, load, load_tokenizer, refuse_unsupported
from setblock.model.sbd_model import SBDModel
from setblock.training.checkpoints import claim, is_finished, newest_checkpoint
from setblock.training.config import SBDConfig
from setblock.training.recipe import ModelSection, Recipe
from setblock.training.trainer import SBDTrainer

_TOKENIZER_TEXTS = 20_000


def train(recipe: Recipe, args: SBDConfig) -> Path:
    """Train as a recipe says and save the result in its `output_dir`.

    Goes on from the newest whole checkpoint there, if there is one, and leaves a finished run as it is. The final model
    appears only when it is whole.

    Raises:
        SetBlockError: the recipe's model can't be loaded or made, its data does not fit the recipe's own limits, or the
            output folder holds the run of another recipe.
    """
    # 1. Model and tokenizer
    output = Path(args.output_dir)
    if is_finished(output):
        return output
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetBlockError(f"can't write to training.output_dir {output}: {error.strerror}") from error
    set_seed(args.seed)
    sbd = starting_model(recipe.model, recipe.data)
    use_chat_template(recipe.data, sbd.tokenizer)
    if args.objective == "sbd":
        sbd.prepare_for_training(
            block_sizes=args.block_sizes,
            logit_shift=args.logit_shift,
            first_token_from_causal=args.first_token_from_causal,
        )

    # 2. Data
    rows = rows_of(
        recipe.data,
        sbd.tokenizer,
        context_length=context_length_of(sbd.model.config),
        vocabulary=len(sbd.model.get_input_embeddings().weight),
        mask_token_id=sbd.facts.mask_token_id if sbd.facts else None,
    )

    # 3. Train
    trainer = SBDTrainer(
        sbd.model,
        args,
        mask_token_id=sbd.facts.mask_token_id if sbd.facts else None,
        end_of_text_id=sbd.end_of_text_ids[0],
        train_dataset=rows.train,
        eval_dataset=rows.evaluation,
        data_collator=RowCollator(pad_token_id=sbd.end_of_text_ids[0]),
        processing_class=sbd.tokenizer,
    )
    claim(output, recipe, documents=rows.fingerprint)
    checkpoint = newest_checkpoint(output)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    # 4. Save
    if trainer.is_world_process_zero():
        sbd.save(output)
    return output


def starting_model(section: ModelSection, data: DataSection) -> SBDModel:
    """The model a recipe starts from: loaded, or made from its config with random weights and a tokenizer of its own."""
    if section.path is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTrainedForBlocks)  # that is about to change
            return load(section.path, dtype=torch.float32)
    config, tokenizer = starting_tokenizer(section, data)
    torch.manual_seed(section.seed)
    with _making_a_model():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    refuse_unsupported(config)
    return SBDModel(model, tokenizer)


def starting_tokenizer(section: ModelSection, data: DataSection) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """The config and the tokenizer of the model a recipe starts from, without its weights."""
    if section.path is not None:
        return load_tokenizer(section.path)
    assert section.config is not None and section.vocab_size is not None
    texts = itertools.islice(corpus_texts(data), _TOKENIZER_TEXTS)
    tokenizer = train_tokenizer(texts, vocab_size=section.vocab_size)
    of_tokenizer = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with _making_a_model():
        return AutoConfig.for_model(**{**section.config, **of_tokenizer}), tokenizer


@contextmanager
def _making_a_model() -> Iterator[None]:
    """Transformers raises anything over a config that it can't make a model of."""
    try:
        yield
    except Exception as error:
        raise SetBlockError(f"model.config: can't make a model of it: {' '.join(str(error).split())}") from error


def context_length_of(config: PretrainedConfig) -> int:
    """How many tokens a model's context has room for; more than there will be where its config does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 1 << 30
