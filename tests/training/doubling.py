"""Rows of random documents, and the doubled inputs that are made of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.training.inputs.doubled import TrainingInputs, doubled_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits
from setblock.training.loss.loss import SBDLoss, sbd_loss

MASK, END, VOCABULARY = 1, 0, 60


def documents_of(lengths: Sequence[int]) -> list[Document]:
    """With prompts of 3 tokens."""
    generator = torch.Generator().manual_seed(0)
    return [
        Document(torch.randint(2, VOCABULARY, (n,), generator=generator).tolist(), [i >= 3 for i in range(n)])
        for n in lengths
    ]


def batch_of(dataset: RowDataset) -> dict[str, Tensor]:
    """All rows."""
    return as_batch([dataset[i] for i in range(len(dataset))], pad_token_id=END)


def packed_rows(lengths: Sequence[int] = (13, 9, 14, 17)) -> dict[str, Tensor]:
    """The first two rows, of 30 tokens."""
    return batch_of(RowDataset(pack(documents_of(lengths), row_length=30, pad_token_id=END)[:2]))


def doubled(rows: dict[str, Tensor], **others: Any) -> TrainingInputs:
    """`doubled_inputs`, with blocks of 5 and plain noise unless asked for otherwise."""
    usual = {"block_size": 5, "noising": Noising(), "logit_shift": False, "seed": (0, 0)}
    special = {"noise_ids": range(MASK, MASK + 1), "end_of_text_id": END, "context_length": 128}
    return doubled_inputs(rows, **(usual | special | others))


def loss_of(model: PreTrainedModel, inputs: TrainingInputs) -> SBDLoss:
    """Eq. 14 as it stands, from all logits of one pass."""
    logits = training_logits(model, inputs, torch.cat([inputs.ntp.index, inputs.matp.index]))
    return sbd_loss(logits, inputs.ntp.token_ids, inputs.matp.token_ids)
