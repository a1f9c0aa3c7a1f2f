"""Say what a training would need, without weights and without a GPU: memory by kind, disk, operations, days.

Knows recipes, and PyTorch's memory trackers on fake tensors, which have shapes and no storage: one step runs through
`training_loss`, as the trainer's would. Knows data sheets only by the peak that it is given.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.data.corpus.tokenised import MANIFEST
from setblock.data.packing import Document, RowDataset, pack
from setblock.data.rows import rows_of
from setblock.data.texts.records import check_texts
from setblock.errors import SetBlockError
from setblock.model.adapter.gate import gate_of
from setblock.model.attention.attention import LAYERED
from setblock.model.attention.document_attention import document_attention
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import FrozenModel, add_adapter
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator
from setblock.training.inputs.doubled import Targets, TrainingInputs
from setblock.training.loss.forward import training_loss
from setblock.training.loss.head import SplitHead
from setblock.training.recipe import Recipe
from setblock.training.run.train import context_length_of, starting_tokenizer
from setblock.training.trainer.metrics import token_cost

DOCUMENT_LENGTH = 1024
"""Tokens of the documents that fill the rows of the step."""

LEFT_OUT = (
    "memory that the allocator can't use (allow a tenth), kernels' own scratch memory and NCCL's buffers",
    "the optimizer's temporaries, about the size of the gradients, while there are no activations",
    "what attention computes between tokens, layers that are run again, evaluations and waiting for data, in the time",
    f"the lengths of your documents: rows are full of documents of {DOCUMENT_LENGTH:,} tokens that carry loss all over",
)

_MOST_RUNS = 64
_GPUS_OF_A_HOST = 8

_KINDS = {
    "weights": ("Parameter", "Sharded Param", "Unsharded Param", "All Gather", "Buffer"),
    "gradients": ("Gradient", "Sharded Grad", "Unsharded Grad", "Reduce Scatter"),
    "optimizer": ("Optstate", "OptState"),
    "activations": ("Activation", "Inputs"),
    "logits and other temporaries": ("Temp", "Other"),
}


@dataclass(frozen=True)
class Estimate:
    """Hold what a training would need. Sizes are in bytes.

    Attributes:
        parameters, trained: how many there are, and how many are trained.
        rows, tokens, steps: of the whole training; rows are full of tokens at most.
        pass_tokens: clean and noisy tokens of one pass of one GPU.
        peak: the most memory that a GPU holds, by kind.
        host: memory of a machine while its processes load the weights; one of them does where they are sharded.
        checkpoint: one on disk.
        disk: all that are there at once, and the final model.
        operations: floating-point operations of the whole training.
        seconds: at the share of the peak that was given.
        is_sharded: whether weights, gradients and optimizer are spread over the GPUs.
    """

    parameters: int
    trained: int
    rows: int
    tokens: int
    steps: int
    pass_tokens: int
    peak: Mapping[str, int]
    host: int
    checkpoint: int
    disk: int
    operations: float
    seconds: float
    gpus: int
    is_sharded: bool

    @property
    def total(self) -> int:
        """Return the most memory that a GPU holds."""
        return sum(self.peak.values())


def advice(estimate: Estimate, recipe: Recipe, args: SBDConfig) -> str:
    """Return what to change where a recipe needs more memory than there is."""
    state = estimate.peak["weights"] + estimate.peak["gradients"] + estimate.peak["optimizer"]
    if state > estimate.total / 2:
        return "use more GPUs" + ("" if recipe.adapter is not None else ", or train an adapter")
    if not args.activation_checkpointing:
        return "set training.activation_checkpointing: true"
    if args.per_device_train_batch_size > 1:
        return "lower training.per_device_train_batch_size, and raise training.gradient_accumulation_steps by as much"
    return "lower data.row_length"


def dry_run(recipe: Recipe, args: SBDConfig, *, gpus: int, peak: float, share: float) -> Estimate:
    """Estimate what a recipe needs on some GPUs, over which FSDP2 spreads weights, gradients and optimizer; but not those of an
    adapter on the future block.

    Args:
        peak: of one, in operations per second.
        share: of the peak that is reached, in 0..1.

    Raises:
        SetBlockError: the model's config can't be read, or a file of the data is not there.
    """
    # 1. What is trained, and on what
    if recipe.data.tokenised is None:
        check_texts(recipe.data)
    elif not (Path(recipe.data.tokenised) / MANIFEST).is_file():
        raise SetBlockError(
            f"data.tokenised {recipe.data.tokenised} holds no tokenised data: run `setblock data tokenise` first"
        )
    config, tokenizer = starting_tokenizer(recipe.model, recipe.data)
    context = context_length_of(config)
    length = min(recipe.data.row_length or context, context)
    batch = args.per_device_train_batch_size
    inputs = _inputs(args, rows=batch, length=length, context_length=context)

    # 2. One step on fake tensors
    # FSDP2's tracker does not take two passes, of one half each.
    halves = recipe.adapter is not None and recipe.adapter.only_noisy
    is_sharded = gpus > 1 and not halves
    model, frozen = _model(recipe, args, config, tokenizer)
    everything, trained = model.num_parameters(), model.num_parameters(only_trainable=True)
    cost = token_cost(model)
    with _mesh(gpus if is_sharded else 1) as mesh, FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _make_fake(model, whole=mesh is None)
        fake = inputs._mapped(mode.from_tensor)
        kinds = _peak(model, frozen, args, fake, mesh)

    # 3. The whole training
    a_step = recipe.training.get("global_batch_size") or batch * gpus * args.gradient_accumulation_steps
    if a_step % (batch * gpus):
        raise SetBlockError(
            f"training.global_batch_size must be a multiple of {batch * gpus} ({gpus} GPUs x {batch}), not {a_step}"
        )
    steps = args.max_steps
    if steps <= 0:
        rows = len(rows_of(recipe.data, tokenizer, context_length=context).train)
        steps = math.ceil(rows * args.num_train_epochs / a_step)
    operations = float(cost.of(inputs)) * (a_step // batch) * steps
    weight_bytes = 2 if recipe.adapter is not None else 4
    checkpoint = trained * 4 * (1 if args.save_only_model else 3)
    kept = args.save_total_limit or (steps // int(args.save_steps) if args.save_steps >= 1 else 1)
    return Estimate(
        parameters=everything,
        trained=trained,
        rows=steps * a_step,
        tokens=steps * a_step * length,
        steps=steps,
        pass_tokens=inputs.clean_tokens + inputs.noisy_tokens,
        peak=kinds,
        host=everything * weight_bytes * (1 if is_sharded else min(gpus, _GPUS_OF_A_HOST)),
        checkpoint=checkpoint,
        disk=checkpoint * max(1, kept) + everything * weight_bytes,
        operations=operations,
        seconds=operations / (gpus * peak * share),
        gpus=gpus,
        is_sharded=is_sharded,
    )


def _inputs(args: SBDConfig, *, rows: int, length: int, context_length: int) -> TrainingInputs:
    """Return the inputs of a pass over full rows, at the largest block size."""
    document = min(DOCUMENT_LENGTH, length)
    lengths = [document] * (length // document) + ([length % document] if length % document else [])
    documents = [Document([0] * n, [True] * n) for _ in range(rows) for n in lengths]
    dataset = RowDataset(pack(documents, row_length=length, pad_token_id=0))
    collator = SBDCollator(args, mask_token_id=1, end_of_text_id=0, context_length=context_length, is_flat=True)
    batch = collator.rows([dataset[row] for row in range(rows)])
    return collator.inputs(batch, step=0, block_size=max(args.block_sizes))


def _model(
    recipe: Recipe, args: SBDConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[Any, FrozenModel | None]:
    """Return the model to train, and what runs its clean half where that is frozen."""
    dtype = torch.float32 if recipe.adapter is None else torch.bfloat16
    dtype = dtype if recipe.model.dtype is None else getattr(torch, recipe.model.dtype)
    # Flex attention needs a GPU; PyTorch's SDPA holds as much, by documents.
    frozen = None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        if recipe.adapter is not None:
            wrapped = add_adapter(SBDModel(model, tokenizer), recipe.adapter)
            frozen = FrozenModel(wrapped) if recipe.adapter.only_noisy else None
    if args.gradient_checkpointing or args.activation_checkpointing:
        model.activation_checkpointing_enable()
    return model.train(), frozen


def _make_fake(model: nn.Module, *, whole: bool) -> None:
    """Replace tensors without storage by ones that pretend to have it on a CPU, of which PEFT can't make an adapter. Those that
    are trained are float32, as it has them. Of a whole model, the others become buffers: the tracker wants a gradient of all
    parameters."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                if id(parameter) not in made:
                    dtype = torch.float32 if parameter.requires_grad else parameter.dtype
                    empty = torch.empty(parameter.shape, dtype=dtype)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                if whole and not parameter.requires_grad:
                    del module._parameters[name]
                    module.register_buffer(name, made[id(parameter)].data)
                    continue
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


class _WholeMemTracker(MemTracker):  # type: ignore[no-untyped-call]
    """Track the peak of the whole model alone: PyTorch's tracker goes through all modules at each operation, and an adapter
    has thousands."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        modules, self.memory_tracking = self.memory_tracking, type(self.memory_tracking)()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = modules


def _peak(
    model: Any, frozen: FrozenModel | None, args: SBDConfig, inputs: TrainingInputs, mesh: DeviceMesh | None
) -> dict[str, int]:
    """Return the most that a device holds in a step, by kind."""
    half = args.bf16 or args.fp16
    if mesh is not None:
        _shard(model, mesh, half=half)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)
    for p in trained:
        moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
    tracker = _WholeMemTracker() if mesh is None else FSDPMemTracker(model, optimizer)
    tracker.track_external(*([model, optimizer] if mesh is None else [optimizer]))
    head = SplitHead(model.get_output_embeddings(), lambda logits: logits)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if half and mesh is None else nullcontext()
    gate = gate_of(model)
    if gate is not None:
        none = inputs.ntp.index[:0]
        inputs = replace(inputs, ntp=Targets(none, none))
        gate.open()

    def clean_half(*args: Any, **how: Any) -> Any:
        assert frozen is not None
        found = frozen.clean_half(*args, **how)
        tracker.reset_mod_stats()  # it takes each module's pass once
        return found

    with tracker, _attention(len(inputs.rows[0].clean) + len(inputs.rows[0].noisy)), document_attention(model):
        with cast:
            loss = training_loss(
                model,
                inputs,
                head=None if args.cross_entropy == "plain" else head,
                ntp_weight=args.ntp_weight,
                matp_weight=args.matp_weight,
                masked_loss=args.masked_loss,
                place_decay=args.place_decay,
                always_chunked=args.cross_entropy == "chunked",
                clean_half=None if frozen is None else clean_half,
            )
        torch.autograd.backward(loss.total)
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    by_name = {getattr(kind, "value", str(kind)): size for kind, size in snapshot.items()}
    kinds = {kind: sum(by_name.pop(name, 0) for name in names) for kind, names in _KINDS.items()}
    by_name.pop("Total", None)
    assert not any(by_name.values()), by_name
    return kinds


@contextmanager
def _attention(runs: int) -> Iterator[None]:
    """Attend all tokens in one causal call where documents would be thousands of calls, which hold as much but for masks."""
    if runs <= _MOST_RUNS:
        yield
        return
    name = LAYERED["sdpa"]
    ours = ALL_ATTENTION_FUNCTIONS[name]

    def at_once(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **how: Any) -> Any:
        known = {name: value for name, value in how.items() if name in ("dropout", "scaling")}
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, is_causal=True, **known)

    AttentionInterface.register(name, at_once)
    try:
        yield
    finally:
        AttentionInterface.register(name, ours)


def _shard(model: Any, mesh: DeviceMesh, *, half: bool) -> None:
    """Spread a model as Accelerate does by FSDP2: each layer alone."""
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    )
    layers = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


@contextmanager
def _mesh(size: int) -> Iterator[DeviceMesh | None]:
    """Pretend to be the first of so many processes; None for one."""
    if size == 1:
        yield None
        return
    assert not dist.is_initialized()
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()
