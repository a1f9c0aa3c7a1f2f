"""The estimate of what a training needs, made without weights and without a GPU: memory by kind, disk, operations,
days.

One step runs through `training_loss`, as in the trainer, on PyTorch's fake tensors, which have shapes but no storage,
and the live bytes are counted. The memory that FSDP2 needs besides follows from how it spreads weights. The hardware's
peak is an argument.
"""

import math
import statistics
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.data.packing import RowDataset, as_batch
from setblock.data.tasks import is_task
from setblock.data.texts.records import check_texts, local_files
from setblock.data.tokenizer import train_tokenizer
from setblock.errors import SetBlockError, warn
from setblock.model.attention.attention import LAYERED, has_state
from setblock.model.attention.document_attention import document_attention
from setblock.model.loading.loading import has_tokenizer, load_config
from setblock.model.sbd_model import SBDModel
from setblock.roofline.shape import CONFIGS
from setblock.training.adapter import add_adapter, frozen_half
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator
from setblock.training.inputs.doubled import Targets, TrainingInputs
from setblock.training.loss.forward import SplitHead, training_loss
from setblock.training.recipe import Recipe
from setblock.training.run.train import NO_LIMIT, context_length_of, starting_tokenizer
from setblock.training.trainer.metrics import TokenCost

DOCUMENT_LENGTH = 1024
"""Tokens of the documents that fill the rows, where the data are not read."""

_SAMPLE = 64  # rows of the sample

LEFT_OUT = (
    "memory that the allocator can't use (allow a tenth), kernels' own scratch memory and NCCL's buffers",
    "the optimizer's temporaries, about the size of the gradients, while there are no activations",
    "what attention computes between tokens, layers that are run again, evaluations and waiting for data, in the time",
)
NOT_READ = f"the lengths of your documents: rows are taken to be full of documents of {DOCUMENT_LENGTH:,} tokens, all with loss"
"""Also left out of the estimate where the data are not read."""


@dataclass(frozen=True)
class Estimate:
    """What a training needs. Sizes are in bytes."""

    parameters: int  # how many there are
    trained: int  # how many of them are trained
    rows: int  # of the whole training, as the following two
    tokens: int  # as if rows were full, unless `reads_data`
    steps: int
    reads_data: bool  # whether the rows are those of the recipe's data
    pass_tokens: int  # clean and noisy tokens of the largest pass of one GPU
    peak: Mapping[str, int]  # the most memory that a GPU holds, by kind
    host: int  # memory of a machine while one of its processes loads the weights
    checkpoint: int  # one on disk
    disk: int  # all checkpoints that exist at once, and the final model
    operations: float  # floating-point operations of the whole training
    seconds: float  # at the share of the peak that was given

    @property
    def total(self) -> int:
        """Return the most memory that a GPU holds."""
        return sum(self.peak.values())


def advice(estimate: Estimate, recipe: Recipe, args: SBDConfig) -> str:
    """Return what to change in a recipe that needs more memory than there is."""
    state = estimate.peak["weights"] + estimate.peak["gradients"] + estimate.peak["optimizer"]
    if state > estimate.total / 2:
        return "use more GPUs" + ("" if recipe.adapter is not None else ", or train an adapter")
    if not args.activation_checkpointing:
        return "set training.activation_checkpointing: true"
    if args.per_device_train_batch_size > 1:
        return "lower training.per_device_train_batch_size, and raise training.gradient_accumulation_steps by as much"
    return "lower data.row_length"


def dry_run(recipe: Recipe, args: SBDConfig, *, gpus: int, peak: float, share: float) -> Estimate:
    """Estimate what a recipe needs on `gpus` GPUs, over which FSDP2 spreads weights, gradients and optimizer. `peak` is
    the peak of one GPU, in operations per second, of which a `share` in 0..1 is reached. The lengths of rows are read
    where that needs no download, or where the number of rows is needed. Raise `SetBlockError` if the model's config
    can't be read, a file of the data is missing, or the tokenised data are not this recipe's."""
    # 1. What is trained, and on what
    if recipe.data.tokenised is None:
        check_texts(recipe.data)  # checked first: the rest may take long
    config, tokenizer = _start(recipe)
    if has_state(config):
        raise SetBlockError(f"what {config.model_type} needs can't be estimated: it keeps a recurrent state")
    context, steps, batch = context_length_of(config), args.max_steps, args.per_device_train_batch_size
    rows = _rows(recipe, tokenizer, context, are_counted=steps <= 0)
    sample = RowSample.of(recipe, args, rows, context_length=context)
    inputs = sample.largest(args, batch=batch)

    # 2. One step on fake tensors
    model = _model(recipe, args, config, tokenizer)
    everything, trained = model.num_parameters(), model.num_parameters(only_trainable=True)

    # 3. The whole training
    a_step = recipe.training.get("global_batch_size") or batch * gpus * args.gradient_accumulation_steps
    if a_step % (batch * gpus):
        raise SetBlockError(
            f"training.global_batch_size must be a multiple of {batch * gpus} ({gpus} GPUs x {batch}), not {a_step}"
        )
    if steps <= 0:
        assert rows is not None
        steps = math.ceil(len(rows) * args.num_train_epochs / a_step)
    operations = sample.mean_cost(TokenCost(model)) * a_step * steps
    weight_bytes = 2 if recipe.adapter is not None else 4
    checkpoint = trained * 4 * (1 if args.save_only_model else 3)
    kept = args.save_total_limit or (steps // int(args.save_steps) if args.save_steps >= 1 else 1)
    return Estimate(
        parameters=everything,
        trained=trained,
        rows=steps * a_step,
        tokens=round(steps * a_step * sample.mean_tokens),
        steps=steps,
        reads_data=rows is not None,
        pass_tokens=inputs.clean_tokens + inputs.noisy_tokens,
        peak=_peak(model, args, inputs, gpus),
        host=everything * weight_bytes,
        checkpoint=checkpoint,
        disk=checkpoint * max(1, kept) + everything * weight_bytes,
        operations=operations,
        seconds=operations / (gpus * peak * share),
    )


def _start(recipe: Recipe) -> tuple[PretrainedConfig, PreTrainedTokenizerBase | None]:
    """Return the config of the model a recipe starts from, and its tokenizer. The tokenizer is None where only a config
    exists: in a folder, or in the table of the roofline, which also stands in for a hub that can't be reached."""
    path = recipe.model.path
    if path is None:
        return starting_tokenizer(recipe.model, recipe.data)
    name = path.rpartition("/")[2].lower().removesuffix("-instruct").removesuffix("-base")  # of the same sizes
    known = None if Path(path).is_dir() else CONFIGS.get(name)
    if known is None or "/" in path:
        try:
            if not has_tokenizer(path):
                return load_config(path), None
            return starting_tokenizer(recipe.model, recipe.data)
        except SetBlockError as error:
            if known is None:
                raise
            warn(f"{error}; the sizes are those of {name} in the roofline's table")
    assert known is not None
    return AutoConfig.for_model(**known, max_position_embeddings=NO_LIMIT), None


def _rows(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase | None, context_length: int, *, are_counted: bool
) -> CorpusRows | None:
    """Return the rows to train on; None where they can't be read, or would need a download although their number is not
    needed."""
    sources = [each.source for own in recipe.data.parts.values() for each in own.sources]
    is_here = recipe.data.tokenised is not None or all(
        is_task(each) or local_files(each) is not None for each in sources
    )
    if tokenizer is None:
        if are_counted:
            raise SetBlockError(
                f"model {recipe.model.path} has no tokenizer here, so that rows can't be counted: set training.max_steps"
            )
        return None
    return rows_of(recipe.data, tokenizer, DocumentLimits(context_length))["train"] if is_here or are_counted else None


@dataclass(frozen=True)
class RowSample:
    """The inputs of a sample of rows, each alone, and their batches."""

    rows: list[dict[str, Tensor]]  # items of a `RowDataset`
    alone: list[TrainingInputs]  # at the largest block size
    is_average: list[bool]  # whether a row was drawn evenly, or because it is long
    context_length: int

    @classmethod
    def of(cls, recipe: Recipe, args: SBDConfig, rows: CorpusRows | None, *, context_length: int) -> "RowSample":
        """Return rows drawn evenly from all, and as many of the longest as a pass has; full rows if there are no
        data."""
        batch = args.per_device_train_batch_size
        if rows is None:
            length = min(recipe.data.row_length or context_length, context_length)
            if length == NO_LIMIT:
                raise SetBlockError("how long rows are can't be known without the data: set data.row_length")
            items = [_full_row(length) | {"row_ids": torch.tensor(number)} for number in range(batch)]
            is_average = [True] * batch
        else:
            evenly = np.unique(np.linspace(0, len(rows) - 1, num=min(_SAMPLE, len(rows))).astype(int))
            longest = np.argsort(np.add.reduceat(rows.lengths, rows.starts[:-1]), kind="stable")[-batch:]
            data = RowDataset(rows)
            items = [data[int(index)] for index in (*evenly, *longest)]
            is_average = [True] * len(evenly) + [False] * len(longest)
        alone = [_inputs(args, [each], context_length=context_length) for each in items]
        return cls(items, alone, is_average, context_length)

    def largest(self, args: SBDConfig, *, batch: int) -> TrainingInputs:
        """Return the inputs of a pass over the rows with the most tokens, noisy ones included."""
        sizes = [each.clean_tokens + each.noisy_tokens for each in self.alone]
        order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
        return _inputs(args, [self.rows[number] for number in order[:batch]], context_length=self.context_length)

    def mean_cost(self, cost: TokenCost) -> float:
        """Return the mean number of operations of a row."""
        return self._mean([cost.of(each) for each in self.alone])

    @property
    def mean_tokens(self) -> float:
        """Return the mean number of tokens of a row, without padding and noisy ones."""
        return self._mean([int((each["document_ids"] >= 0).sum()) for each in self.rows])

    def _mean(self, values: list[int]) -> float:
        return statistics.mean(value for value, counts in zip(values, self.is_average, strict=True) if counts)


def _full_row(length: int) -> dict[str, Tensor]:
    places = torch.arange(length)
    empty = dict.fromkeys(("input_ids", "labels"), torch.zeros_like(places))
    return empty | {"position_ids": places % DOCUMENT_LENGTH, "document_ids": places // DOCUMENT_LENGTH}


def _inputs(args: SBDConfig, rows: list[dict[str, Tensor]], *, context_length: int) -> TrainingInputs:
    """Return the inputs of a pass over rows, at the largest block size."""
    collator = SBDCollator(args, noise_ids=range(1, 2), end_of_text_id=0, context_length=context_length, is_flat=True)
    return collator.inputs(as_batch(rows, pad_token_id=0), step=0, block_size=max(args.block_sizes))


def _model(recipe: Recipe, args: SBDConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> Any:
    """Return the model to train."""
    dtype = getattr(torch, recipe.model.dtype or ("float32" if recipe.adapter is None else "bfloat16"))
    # Flex attention needs a GPU; PyTorch's SDPA by documents needs the same memory.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        if recipe.adapter is not None:
            tokenizer = tokenizer or train_tokenizer([], vocab_size=261)  # no text is encoded
            add_adapter(SBDModel(model, tokenizer), recipe.adapter)
    if args.gradient_checkpointing or args.activation_checkpointing:
        model.activation_checkpointing_enable()
    return model.train()


class _LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A counter of the bytes of live tensors that operations make."""

    def __init__(self, model: nn.Module, gpus: int) -> None:
        """Take a model, whose weights are not counted, and the number of GPUs over which gradients are spread."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0  # at present, and at most
        self.gradients = self._done = 0  # of `most`, and at present, those of whole backward passes
        held = (*model.parameters(), *model.buffers())
        self._seen = WeakIdKeyDictionary({tensor.untyped_storage(): True for tensor in held})
        self._gpus = gpus
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                self._seen[storage] = True
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return made

    def _add(self, size: int) -> None:
        self.now += size
        if self.now > self.most:
            self.most, self.gradients = self.now, self._done

    def _accumulated(self, parameter: Tensor) -> None:
        kept = 4 * parameter.numel() // self._gpus
        if self._gpus > 1:  # summed over the processes in float32
            parameter.grad = None
            self._add(kept)
        self._done += kept


def _peak(model: Any, args: SBDConfig, inputs: TrainingInputs, gpus: int) -> dict[str, int]:
    """Return the peak memory of a device in a step, by kind."""
    is_half, frozen = args.bf16 or args.fp16, frozen_half(model)
    weights, reduced = sum(p.nbytes for p in model.parameters()) // gpus, 0
    if gpus > 1:
        gathered, reduced = _held_whole(model.to(torch.bfloat16) if is_half else model)
        weights += gathered
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model.to_empty(device="cpu")
        model.tie_weights()
        cast = torch.autocast("cpu", dtype=torch.bfloat16) if is_half and gpus == 1 else nullcontext()
        fake = inputs._mapped(mode.from_tensor)
        if frozen is not None:
            none = fake.ntp.index[:0]
            fake = replace(fake, ntp=Targets(none, none))
        head = SplitHead(model.get_output_embeddings(), lambda logits: logits)
        runs = len(inputs.rows[0].clean) + len(inputs.rows[0].noisy)
        at_once = _attention_at_once() if runs > 64 else nullcontext()
        with _LiveMemory(model, gpus) as live, at_once, document_attention(model):
            with cast:
                loss = training_loss(
                    model,
                    fake,
                    head=None if args.cross_entropy == "plain" else head,
                    ntp_weight=args.ntp_weight,
                    matp_weight=args.matp_weight,
                    masked_loss=args.masked_loss,
                    always_chunked=args.cross_entropy == "chunked",
                    clean_half=frozen,
                )
            torch.autograd.backward(loss.total)
    return {
        "weights": weights,
        "gradients": live.gradients + reduced,
        "optimizer": 8 * model.num_parameters(only_trainable=True) // gpus,  # two moments of AdamW
        "activations, logits and other temporaries": live.most - live.gradients,
    }


def _held_whole(model: Any) -> tuple[int, int]:
    """Return two numbers of bytes: of the weights that FSDP2 gathers at once (two layers and all that is in no layer),
    and of one layer's float32 gradients that are being sent."""
    names = set(model._no_split_modules or ())
    layers = [list(module.parameters()) for module in model.modules() if type(module).__name__ in names]
    sizes = [sum(p.nbytes for p in layer) for layer in layers]
    trained = [sum(4 * p.numel() for p in layer if p.requires_grad) for layer in layers]
    outside = sum(p.nbytes for p in model.parameters()) - sum(sizes)
    return outside + 2 * max(sizes, default=0), max(trained, default=0)


@contextmanager
def _attention_at_once() -> Iterator[None]:
    """Attend all tokens in one causal call, instead of one call per document: the memory is the same but for masks."""

    def at_once(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **how: Any) -> Any:
        known = {name: value for name, value in how.items() if name in ("dropout", "scaling")}
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, is_causal=True, **known)

    ALL_ATTENTION_FUNCTIONS[LAYERED["sdpa"]] = at_once  # hides what is registered
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[LAYERED["sdpa"]]
