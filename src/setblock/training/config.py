"""`SBDConfig`: what Set Block Decoding adds to Transformers' `TrainingArguments`."""

import os
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

from transformers import TrainingArguments

from setblock.errors import check_at_least, check_one_of
from setblock.training.inputs.noising import Noising
from setblock.training.loss.loss import MaskedLoss


@dataclass
class SBDConfig(Noising, TrainingArguments):
    """The training arguments. Only what differs from `transformers.TrainingArguments` is described here. The options of
    the noisy half are fields as well; `setblock.training.inputs.noising.Noising` describes them.

    Attributes:
        objective: `sbd`: next-token and masked-token prediction (eq. 14). `ntp`: next-token prediction only, for a base model
            or for a comparison.
        block_sizes: the block sizes k. Each optimiser step draws one of them (Algorithm 1).
        ntp_weight: the weight of the next-token term. 0 drops it, which ruins plain decoding (paper, section 4, ablation).
        matp_weight: the weight of the masked-token term.
        logit_shift: False: the output at a masked position predicts that position (the paper). True: it predicts the next
            one, as in pretraining, so a model learns blocks from far fewer tokens.
        noise: what stands at masked positions. `mask`: the mask token. `uniform`: random token ids, so that there is no mask
            token, and the vocabulary stays as it is (UNO, arXiv 2609.04010).
        block_attention: `bidirectional`: the tokens of a noisy block see all of it (the paper). `causal`: none sees a later
            one (UNO, arXiv 2609.04010).
        first_token_from_causal: with unshifted logits, decode the first token of a block from the causal logit that the
            commit pass computes anyway. Always on with `logit_shift`. It changes decoding only, and the checkpoint records it.
        matrix_optimizer: `adamw`: Transformers' `optim` for all parameters. `muon`: Muon for the matrices inside the model,
            AdamW for the rest, at the same learning rate.
        cross_entropy: `plain`: compute all logits at once. `chunked`: compute them in chunks, which needs less memory.
            `auto`: `chunked` for many logits, else `plain`.
        block_size_curriculum: the share of the training over which the block sizes grow. The first step draws the smallest
            only, and after this share all are drawn. 0: all from the first step (the paper).
        masked_loss: the loss at a masked token. `cross_entropy`: that of the text's token (the paper). `total_variation`:
            ½ Σ |p - q| of the model's distribution q and the clean half's p for the same token, which has no gradient. It is
            the share of drafts that sampling rejects.
        pad_to_multiple_of: pad the tokens of a pass, clean and noisy ones together, to a multiple of this, as TRL does. Fewer
            shapes occur, for each of which a GPU's kernels are chosen and FlexAttention is compiled. None: no more than needed.
        torch_compile: compile each decoder layer by itself, for any number of tokens, in training steps. (Transformers' Trainer
            compiles the whole model.) Not with `only_noisy` of an adapter, and not with FSDP2.
        global_batch_size: rows that an optimiser step learns from, over all processes. The accumulation steps follow from
            it, so a run may continue on another number of processes. None: `per_device_train_batch_size`, times
            `gradient_accumulation_steps`, times the processes.
    """

    objective: Literal["sbd", "ntp"] = "sbd"
    block_sizes: list[int] = field(default_factory=lambda: list(range(2, 17)))
    ntp_weight: float = 1.0
    matp_weight: float = 1.0
    logit_shift: bool = False
    noise: Literal["mask", "uniform"] = "mask"
    block_attention: Literal["bidirectional", "causal"] = "bidirectional"
    first_token_from_causal: bool = False
    matrix_optimizer: Literal["adamw", "muon"] = "adamw"
    cross_entropy: Literal["auto", "plain", "chunked"] = "auto"
    block_size_curriculum: float = 0.0
    masked_loss: MaskedLoss = "cross_entropy"
    pad_to_multiple_of: int | None = None
    global_batch_size: int | None = None

    # Rows carry columns that the model's forward does not take: the noise is drawn from them.
    remove_unused_columns: bool | None = False
    # Otherwise a run logs nothing for many steps.
    logging_first_step: bool = True
    # Filtering would read each loss, and so wait for the device at each step, and would hide a loss that is not a number.
    logging_nan_inf_filter: bool = False

    def __post_init__(self) -> None:
        if self.deepspeed is not None or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
            raise ValueError(
                "DeepSpeed is not supported: shard by FSDP2, accelerate launch --config_file recipes/accelerate/fsdp2.yaml"
            )
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise ValueError(f"block_sizes must be integers of at least 1, not {self.block_sizes}")
        if not 0 <= self.block_size_curriculum <= 1:
            raise ValueError(f"block_size_curriculum must be between 0 and 1, not {self.block_size_curriculum}")
        check_at_least(1, pad_to_multiple_of=self.pad_to_multiple_of)
        check_at_least(0, ntp_weight=self.ntp_weight, matp_weight=self.matp_weight)
        self.check_noising()
        for name, kind in get_type_hints(SBDConfig).items():
            if get_origin(kind) is Literal:
                check_one_of(name, getattr(self, name), get_args(kind))
        super().__post_init__()
        self._set_accumulation()

    def _set_accumulation(self) -> None:
        """Set the accumulation steps that the global batch takes on these processes."""
        at_once = self.train_batch_size * self.world_size
        if self.global_batch_size is None:
            self.global_batch_size = at_once * self.gradient_accumulation_steps
        size, each = self.global_batch_size, self.per_device_train_batch_size
        steps, rest = divmod(size, at_once)
        if size < 1 or rest:
            share = size // self.world_size if size % self.world_size == 0 else 0
            fitting = [str(n) for n in range(1, share + 1) if share % n == 0]
            raise ValueError(
                f"global_batch_size must be a multiple of {at_once} ({self.world_size} processes x "
                f"per_device_train_batch_size {each}), such as {max(1, steps) * at_once} or {(max(1, steps) + 1) * at_once}, "
                f"not {size}" + (f"; or set per_device_train_batch_size to {', '.join(fitting)}" if fitting else "")
            )
        if self.gradient_accumulation_steps not in (1, steps):
            raise ValueError(
                f"global_batch_size {size} takes {steps} accumulation steps here, not gradient_accumulation_steps "
                f"{self.gradient_accumulation_steps}: give one of the two"
            )
        self.gradient_accumulation_steps: int = steps
