"""Training from a recipe to a checkpoint: model + data + trainer. Also merges the adapter of a run into a
checkpoint."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.integrations import get_available_reporting_integrations, is_fsdp_enabled

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.data.packing import RowDataset
from setblock.data.section import DataSection
from setblock.data.texts.chat import use_chat_template
from setblock.data.texts.encoding import corpus_texts
from setblock.data.tokenizer import train_tokenizer
from setblock.errors import SetBlockError, one_line, prefixed
from setblock.files import LOCK, only_writer, write_whole
from setblock.heap import keep_freed_memory
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.checkpoint import refuse_adapter
from setblock.model.loading.loading import NotTrainedForBlocks, load, load_tokenizer, refuse_unsupported
from setblock.model.probe.probe import plan_attention
from setblock.model.sbd_model import SBDModel
from setblock.training.config import SBDConfig
from setblock.training.recipe import ModelSection, Recipe
from setblock.training.run.card import CARD_FILE, model_card
from setblock.training.run.checkpoints import (
    check_run,
    check_shared,
    claim,
    earlier_run,
    is_finished,
    make_folder,
    recorded_recipe,
    step_of,
    telling_of_full_disks,
    warn_of_incomplete,
)
from setblock.training.run.held_out import HeldOutScores
from setblock.training.run.saving import merge, raising_together, save_result
from setblock.training.trainer.metrics import MetricsFile
from setblock.training.trainer.sharding import is_sharded
from setblock.training.trainer.trainer import SBDTrainer, prepare

_NO_MODEL = "model.config: can't make a model of it"  # whatever Transformers raises

MakeCallbacks = Callable[[SBDTrainer, SBDModel], Sequence[TrainerCallback]]
"""A function from the trainer and the model that it trains to the callbacks of the training."""


def train(
    recipe: Recipe,
    args: SBDConfig,
    *,
    callbacks: MakeCallbacks = lambda *_: (),
    peak: float | None = None,
    on_held_out: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Train as a recipe says and save the result in its `output_dir`. Raise `SetBlockError` if the recipe's model can't
    be loaded or made, its data does not fit the recipe's own limits, or the output folder holds the run of another
    recipe, or another process trains in it.

    Resumes from the newest complete checkpoint there, if there is one, and leaves a finished run unchanged. The final
    model appears only when it is complete. All logs are in `metrics.jsonl`. On a CPU, the process keeps freed memory
    from then on (`setblock.heap`). Where the recipe holds documents out, plain decoding's loss on them is measured
    before and after (`setblock.training.run.held_out`).

    Args:
        callbacks: makes more callbacks; the section `evaluate_decoding` needs one (`setblock.evaluation.during_training`).
        peak: of each process's hardware, in operations per second; see `SBDTrainer`.
        on_held_out: called with how many held-out documents have been measured so far, and how many will be.
    """
    _refuse_missing_reporters(args)
    with _only_run(args):
        return _train(recipe, args, callbacks=callbacks, peak=peak, on_held_out=on_held_out)


@contextmanager
def _only_run(args: SBDConfig) -> Iterator[None]:
    """Lock the output folder against other processes while active. Raise `SetBlockError`, the same in all processes, if
    another process trains there, the folder can't be written, or it holds an adapter, with which Transformers would
    load the result."""
    folder = Path(args.output_dir)
    check_shared(args)
    with ExitStack() as held:
        with raising_together():
            if args.should_save and not is_finished(folder):
                make_folder(folder)
                refuse_adapter(folder)
                held.enter_context(only_writer(folder, advice="wait for it, or give another training.output_dir"))
        try:
            yield
        finally:
            # The lock's file is deleted where no run was begun, and in the folder of a finished run
            if args.should_save and (is_finished(folder) or recorded_recipe(folder) is None):
                (folder / LOCK).unlink(missing_ok=True)


def _train(
    recipe: Recipe,
    args: SBDConfig,
    *,
    callbacks: MakeCallbacks,
    peak: float | None,
    on_held_out: Callable[[int, int], None],
) -> Path:
    # 1. Model and tokenizer
    output = Path(args.output_dir)
    finished, checkpoint = earlier_run(args)
    if finished:
        check_run(output, recipe)
        return output
    if args.process_index == 0:
        warn_of_incomplete(output, after=step_of(checkpoint))
    make_folder(output)
    set_seed(args.seed)
    if args.device.type == "cpu":
        keep_freed_memory(for_training=True)
    sbd = prepared_model(recipe, args)

    # 2. Data
    with args.main_process_first():  # the others then find its tokenised documents
        rows = recipe_rows(recipe, sbd)

    # 3. Train
    data = {name: RowDataset(each) for name, each in rows.items()}
    given, held_out = data["train"], data.get("evaluation")
    trainer = SBDTrainer(sbd, args, adapter=recipe.adapter, peak=peak, train_dataset=given, eval_dataset=held_out)
    at_the_end = [] if held_out is None else [_EvaluationAtTheEnd()]
    scores = [HeldOutScores(trainer, sbd, each.rows, on_progress=on_held_out) for each in filter(None, [held_out])]
    for callback in (MetricsFile(), *at_the_end, *callbacks(trainer, sbd), *scores):
        trainer.add_callback(callback)
    with args.main_process_first(local=args.save_on_each_node):  # one process for each folder
        claim(output, recipe, documents=rows["train"].fingerprint, global_batch_size=args.global_batch_size)
    with telling_of_full_disks(output):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        for each in scores:
            each.measure()

        # 4. Save
        save_result(
            trainer,
            sbd,
            output,
            adapter=recipe.adapter,
            starting=lambda: prepared_model(recipe, args, to_be_saved=True),
            dtype=result_dtype(recipe.model),
        )
        if trainer.is_world_process_zero():
            write_whole(output / CARD_FILE, f"{model_card(output, recipe=recipe.model_dump(mode='json'))}\n")
    trainer.accelerator.wait_for_everyone()
    return output


def merge_adapter(adapter: Path, output: Path, *, base: str | None = None) -> Path:
    """Save the model that an adapter and its base make, as the run that trained the adapter would at its end. Raise
    `SetBlockError` if there is no such adapter, the record of its run is missing, the adapter acts on the future block
    alone, or the output folder already holds a model, an adapter or a run.

    Args:
        adapter: a folder that PEFT wrote: a checkpoint of a run in the middle (`RUN/checkpoint-500`), what `keep_adapter` left
            (`RUN/sbd_adapter`), or a run's folder, whose kept adapter is meant.
        output: where to save; holds no checkpoint yet.
        base: the model that the adapter was trained on, where it is no longer where the recipe has it.
    """
    folder = adapter if (adapter / "adapter_config.json").is_file() else adapter / ADAPTER_FOLDER
    if not (folder / "adapter_config.json").is_file():
        raise SetBlockError(f"{adapter} holds no adapter: no adapter_config.json in it or in its {ADAPTER_FOLDER}/")
    if (output / "config.json").exists():
        raise SetBlockError(f"{output} holds a model already: give another --output")
    refuse_adapter(output)
    if recorded_recipe(output) is not None:
        raise SetBlockError(f"{output} is the folder of a run, which would count as finished: give another --output")
    parents = (folder.resolve(), *folder.resolve().parents[:2])
    recorded = next(filter(None, map(recorded_recipe, parents)), None)
    if recorded is None:
        raise SetBlockError(f"{adapter} is not in the folder of a run, whose recipe.json says what it was trained for")
    recipe, args = recorded
    run = args.output_dir
    if recipe.adapter is None:
        raise SetBlockError(
            f"{run} is the folder of a run that trained no adapter, so there is nothing to merge: use it as it is"
        )
    if recipe.adapter.only_noisy:
        raise SetBlockError(
            f"{adapter} acts on the future block alone, and merged it would change plain decoding, too: use {run} as it is"
        )
    if base is not None:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": base})})
    sbd = prepared_model(recipe, args, to_be_saved=True)
    try:
        merge(sbd, folder)
    except (OSError, ValueError, RuntimeError) as error:  # of PEFT, over files that are broken or of another model
        raise SetBlockError(f"can't merge {adapter}: {one_line(error)[:300]}") from error
    sbd.save(output)
    return output


class _EvaluationAtTheEnd(TrainerCallback):
    """A trainer callback that evaluates after the last step, whatever `eval_strategy` is."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == state.max_steps:
            control.should_evaluate = True


def _refuse_missing_reporters(args: SBDConfig) -> None:
    """Raise `SetBlockError` for reporters that are not installed: the Trainer would fail only after the model is
    loaded, with a stack trace."""
    installed = get_available_reporting_integrations()
    if missing := sorted(set(args.report_to) - set(installed)):
        others = " or ".join(["none", *installed])
        raise SetBlockError(f"training.report_to {missing[0]}: its package is not installed; use {others}")


def recipe_rows(recipe: Recipe, sbd: SBDModel) -> dict[str, CorpusRows]:
    """Return the rows of a recipe's data on which a prepared model is trained and evaluated."""
    limits = DocumentLimits(
        sbd.context_length or NO_LIMIT,  # the attention plan may allow less than the config
        vocabulary=len(sbd.model.get_input_embeddings().weight),
        mask_token_id=sbd.sbd_config.mask_token_id if sbd.sbd_config else None,
    )
    return rows_of(recipe.data, sbd.tokenizer, limits)


def prepared_model(recipe: Recipe, args: SBDConfig, *, to_be_saved: bool = False) -> SBDModel:
    """Return the model a recipe starts from, with its chat template and its mask token. It is on the device where it is
    trained; or on the CPU if its weights will be sharded, or are `to_be_saved`, when they are not quantised, whatever
    the recipe says."""
    section = recipe.model
    device: torch.device | str = args.device
    if to_be_saved or is_sharded(args):
        # Under `fsdp_cpu_ram_efficient_loading` the main process reads the weights, and Accelerate sends the others their share
        device = "cpu" if to_be_saved or args.process_index == 0 or not is_fsdp_enabled() else "meta"
    if section.attn_implementation == "flex_attention" and args.device.type == "cpu":
        raise SetBlockError(
            "model.attn_implementation flex_attention trains on a GPU only: it has no backward pass on a CPU"
        )
    if section.path is None:
        sbd = _new_model(section, recipe.data)
    else:
        dtype = None if recipe.adapter is not None else torch.float32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTrainedForBlocks)  # that is about to change
            sbd = load(
                section.path,
                dtype=dtype if section.dtype is None else getattr(torch, section.dtype),
                device=device,
                attn_implementation=section.attn_implementation,
                quantization=None if to_be_saved else section.quantization,
            )
        use_chat_template(recipe.data.chat_template, sbd.tokenizer)
    prepare(sbd, args, recipe.adapter, warns=not to_be_saved)
    if sbd.device.type == "meta":
        # Accelerate tells parameters apart by where they are. Memory that nothing touches takes no room.
        sbd.model.to_empty(device="cpu")
        sbd.model.tie_weights()
    return sbd


def result_dtype(section: ModelSection) -> torch.dtype | None:
    """Return the dtype of the checkpoint that a recipe starts from, which the result also gets; None where the recipe
    names one. Full training and a resumed run need float32. But a result in float32 also loads as float32, where a
    block costs much more than a token."""
    if section.path is None or section.dtype is not None:
        return None
    config, _ = load_tokenizer(section.path)
    return cast(torch.dtype | None, config.dtype)


def _new_model(section: ModelSection, data: DataSection) -> SBDModel:
    """Return a model with random weights, and a tokenizer trained for it."""
    config, tokenizer = starting_tokenizer(section, data)
    refuse_unsupported(config)
    torch.manual_seed(section.seed)
    with prefixed(_NO_MODEL, Exception):
        attention = section.attn_implementation
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    plan_attention(model, alternatives=() if attention else ("eager",))
    return SBDModel(model, tokenizer)


def starting_tokenizer(section: ModelSection, data: DataSection) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Return the config of the model a recipe starts from, and its tokenizer, which has the data's chat template."""
    if section.path is not None:
        config, tokenizer = load_tokenizer(section.path)
    else:
        assert section.config is not None and section.vocab_size is not None
        tokenizer = train_tokenizer(itertools.islice(corpus_texts(data), 20_000), vocab_size=section.vocab_size)
        of_tokenizer = {
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        with prefixed(_NO_MODEL, Exception):
            config = AutoConfig.for_model(**{**section.config, **of_tokenizer})
    use_chat_template(data.chat_template, tokenizer)
    return config, tokenizer


def context_length_of(config: PretrainedConfig) -> int:
    """Return the context length of a model; `NO_LIMIT` where its config has none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or NO_LIMIT


NO_LIMIT = 1 << 30
"""Tokens: the context length of models whose config has none."""
