"""Define what Set Block Decoding adds to Transformers' `TrainingArguments` (`SBDConfig`)."""

from dataclasses import dataclass, field
from typing import Literal, get_args, get_type_hints

from transformers import TrainingArguments

from setblock.training.noising import Noising

Teacher = Literal["clean_half", "base"]


@dataclass
class SBDConfig(Noising, TrainingArguments):
    """Hold the training arguments. Only what differs from `transformers.TrainingArguments` is described here. The
    options of the noisy half are fields as well; `setblock.training.noising.Noising` describes them.

    Attributes:
        objective: `sbd`: next-token and masked-token prediction (eq. 14). `ntp`: next-token prediction alone, without the
            doubled input: what a model is before it is fine-tuned, and what it is compared with afterwards.
        block_sizes: the block sizes k that each optimiser step draws one from (Algorithm 1).
        ntp_weight: weight of the next-token term. 0 drops it, which ruins NTP mode (paper, section 4, ablation).
        matp_weight: weight of the masked-token term.
        logit_shift: False: the output at a masked position predicts that position (the paper). True: it predicts the next
            one, as next-token weights already do, and converts in far fewer tokens.
        first_token_from_causal: with unshifted logits, decode a block's first token from the causal logit that the commit
            pass gives anyway. Always so with `logit_shift`. Recorded in the checkpoint; changes nothing in training.
        matrix_optimizer: `adamw`: Transformers' `optim` for all parameters. `muon`: Muon for the matrices inside the model,
            AdamW for the rest, at the same learning rate.
        cross_entropy: `auto`: with all logits at once where they are few, in chunks where they are many
            (`setblock.training.cross_entropy`). `plain`, `chunked`: always so. `liger`: by Liger's kernel, on a GPU.
        block_size_curriculum: the share of the training over which the block sizes grow: only the smallest is drawn at its
            beginning, all are from its end on (see `setblock.training.block_sizes`). 0: all from the first step (the paper).
        distillation_weight: weight of a third term: at each masked token, the divergence from a teacher's next-token
            distribution there to the model's (see `setblock.training.distillation`). 0: none (the paper).
        teacher: whose distribution that is. `clean_half`: the model's own, as the same pass computes it. `base`: that of the
            model training began with, frozen.
    """

    objective: Literal["sbd", "ntp"] = "sbd"
    block_sizes: list[int] = field(default_factory=lambda: list(range(2, 17)))
    ntp_weight: float = 1.0
    matp_weight: float = 1.0
    logit_shift: bool = False
    first_token_from_causal: bool = False
    matrix_optimizer: Literal["adamw", "muon"] = "adamw"
    cross_entropy: Literal["auto", "plain", "chunked", "liger"] = "auto"
    block_size_curriculum: float = 0.0
    distillation_weight: float = 0.0
    teacher: Teacher = "clean_half"

    # Rows carry columns that the model's forward does not take: the noise is drawn from them.
    remove_unused_columns: bool | None = False
    # To look at each loss would be to wait for the device at each step, and would hide a loss that is not a number.
    logging_nan_inf_filter: bool = False

    def __post_init__(self) -> None:
        if not self.block_sizes or min(self.block_sizes) < 1:
            raise ValueError(f"block_sizes must be integers of at least 1, not {self.block_sizes}")
        if not 0 <= self.block_size_curriculum <= 1:
            raise ValueError(f"block_size_curriculum must be between 0 and 1, not {self.block_size_curriculum}")
        for name in ("ntp_weight", "matp_weight", "distillation_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in kind:
                raise ValueError(f"{name} must be one of {', '.join(kind)}, not {getattr(self, name)!r}")
        self.check_noising()
        super().__post_init__()
        # Each process reads a stream itself and makes its own batches: they have no rows to be dealt out by.
        self.accelerator_config.dispatch_batches = False


_CHOICES = {
    name: get_args(kind)
    for owner in (Noising, SBDConfig)
    for name, kind in get_type_hints(owner).items()
    if name in owner.__annotations__ and getattr(kind, "__origin__", None) is Literal
}
