"""The collator: rows to the inputs of a forward pass, with noise of the block size drawn for the step (Algorithm 1).

It runs on the CPU, in the data loader's workers where there are any, which draw the noise of later batches while the
device computes.

A batch depends only on its rows, the seed and the optimiser step, however rows are spread over processes, accumulation
steps and workers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from transformers import TrainerCallback, TrainerState, TrainingArguments

from setblock.data.packing import IGNORE, as_batch
from setblock.training.config import SBDConfig
from setblock.training.inputs.cut_rows import cut_inputs
from setblock.training.inputs.doubled import TrainingInputs, doubled_inputs, noisy_halves, ntp_inputs

EVALUATION = 1 << 31
"""Replaces the step in an evaluation's seed, so that the noise is the same in every evaluation and differs from every
step's."""


@dataclass(eq=False)
class SBDCollator(TrainerCallback):
    """The collator of `RowDataset` items. A batch has the rows' `input_ids` [B, L], the `inputs`, and the `step` they
    are for. The Trainer divides the loss by the count of `labels` [B, L]: next-token targets, none for a document's
    first token. The collator is also a trainer callback, which counts the batches of each epoch."""

    args: SBDConfig  # the training arguments
    noise_ids: range  # as in `noise_row`; not read where the objective is `ntp`
    end_of_text_id: int  # also what rows are padded with
    context_length: int  # positions stay below it
    is_flat: bool = False  # join all rows into one without padding, which attention by documents allows
    keeps_state: bool = False  # whether the model keeps a recurrent state, so that blocks are in rows of their own
    step: int | None = None  # of all batches; None: a batch's number decides its step

    def __post_init__(self) -> None:
        # Which epoch of how many, its first step, its first batch and the last step. Shared with workers that outlive an epoch.
        self._epoch = torch.zeros(4, dtype=torch.long).share_memory_()  # type: ignore[no-untyped-call]
        self._counted = (0, 0)  # the epoch, and batches of it that were made here

    def inputs(self, rows: dict[str, Tensor], *, step: int, block_size: int) -> TrainingInputs:
        """Return the inputs of one forward pass over `rows`; `step` seeds the noise."""
        seed: tuple[int, ...] = (self.args.seed, step)
        noise: dict[str, Any] = {
            "block_size": block_size,
            "noising": self.args,
            "noise_ids": self.noise_ids,
            "end_of_text_id": self.end_of_text_id,
            "context_length": self.context_length,
            "seed": seed,
        }
        if self.keeps_state:
            halves = [] if self.args.objective == "ntp" else noisy_halves(rows, **noise)
            copies, shift = self.args.noisy_copies, self.args.logit_shift
            return cut_inputs(rows, halves, copies=copies, logit_shift=shift, seed=seed)
        if self.args.objective == "ntp":
            return ntp_inputs(rows, is_flat=self.is_flat, multiple=self.args.pad_to_multiple_of or 1)
        return doubled_inputs(
            rows,
            **noise,
            logit_shift=self.args.logit_shift,
            idle_blocks=False,
            causal_block=self.args.block_attention == "causal",
            is_flat=self.is_flat,
            multiple=self.args.pad_to_multiple_of or 1,
        )

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Restart the count of batches, from the first one that the Trainer does not skip as done by an earlier run."""
        steps = -(-len(kwargs["train_dataloader"]) // args.gradient_accumulation_steps)
        skipped = 0 if args.ignore_data_skip else state.global_step % steps  # 0, too, where no epoch was interrupted
        step, batch = state.global_step - skipped, skipped * args.gradient_accumulation_steps
        self._epoch.copy_(torch.tensor([int(self._epoch[0]) + 1, step, batch, state.max_steps]))

    def __call__(self, items: list[dict[str, Tensor]]) -> dict[str, Any]:
        """Return one batch."""
        rows = as_batch(items, pad_token_id=self.end_of_text_id)
        step = self._next_step() if self.step is None else self.step
        block_size = drawn_block_size(self.args, step=step, max_steps=int(self._epoch[3]))
        inputs = self.inputs(rows, step=step, block_size=block_size)
        document_ids = rows["document_ids"]
        is_first = document_ids.diff(dim=1, prepend=document_ids[:, :1] - 1) != 0
        labels = rows["labels"].masked_fill(is_first, IGNORE)
        return {"input_ids": rows["input_ids"], "labels": labels, "inputs": inputs, "step": step}

    def _next_step(self) -> int:
        """Return the step of the next batch. Workers make batches in turn."""
        epoch, step, first, _ = self._epoch.tolist()
        made = self._counted[1] if self._counted[0] == epoch else 0
        self._counted = (epoch, made + 1)
        worker = get_worker_info()
        batch = first + (made if worker is None else made * worker.num_workers + worker.id)
        return int(step + batch // self.args.gradient_accumulation_steps)


def drawn_block_size(args: SBDConfig, *, step: int, max_steps: int) -> int:
    """Return the block size drawn for an optimiser step (Algorithm 1), from the seed and the step only; the largest in
    an evaluation. A size that is in `block_sizes` twice is drawn twice as often.

    With a curriculum, only the smaller ones are drawn from at first: the share `progress / curriculum` of `block_sizes` in
    order of size, rounded up, and at least one (as LLaDA 2.0, arXiv 2512.15745, and T*, arXiv 2601.11214).
    """
    sizes, curriculum = args.block_sizes, args.block_size_curriculum
    if step == EVALUATION:
        return max(sizes)
    progress = step / max(1, max_steps)  # share of the training that is done
    if progress < curriculum:
        sizes = sorted(sizes)[: max(1, int(np.ceil(len(sizes) * progress / curriculum)))]
    return int(np.random.default_rng((args.seed, step)).choice(sizes))
