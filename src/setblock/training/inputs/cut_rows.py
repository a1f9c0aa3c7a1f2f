"""The inputs of training for a model with a recurrent state: each text as a row, and rows of the text up to a block, with that
block's noisy copy behind it.

A noisy block must begin from the state at its own start, which the doubled input does not have. Here each row is a plain
causal pass, without a mask. Of the noisy blocks of each text, as many as there are copies are drawn at random. Their loss
counts for all.

    0 .................... text .................... end          next tokens
    0 .......... start .......... block                            masked tokens
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setblock.data.packing import IGNORE, PADDING
from setblock.masks import CLEAN
from setblock.model.attention.document_attention import RowRuns, Run
from setblock.training.inputs.doubled import Targets, TrainingInputs, learned_tokens
from setblock.training.inputs.noising import NoisyHalf


class _Text(NamedTuple):
    token_ids: np.ndarray
    labels: np.ndarray


class _CutRow(NamedTuple):
    text: int  # its number, which is also its row
    start: int  # where the block begins
    token_ids: np.ndarray  # of the block, some of them noise
    labels: np.ndarray
    is_learned: np.ndarray  # bool, tokens to be predicted


def cut_inputs(
    rows: dict[str, Tensor], halves: Sequence[NoisyHalf], *, copies: int, logit_shift: bool, seed: tuple[int, ...]
) -> TrainingInputs:
    """Return the inputs for packed rows [B, L] with their noisy halves. The arguments are those of `doubled_inputs`; `copies`
    is the number of noisy copies, and without `halves` there are only the texts."""
    texts, cut = list[_Text](), list[_CutRow]()
    arrays = {name: tensor.numpy() for name, tensor in rows.items()}
    learnable = 0
    for b, row_id in enumerate(arrays["row_ids"].tolist()):
        rng, documents = np.random.default_rng((*seed, row_id, 1)), arrays["document_ids"][b]
        for document in range(int(documents.max(initial=PADDING)) + 1):
            here = documents == document
            if halves:
                half = halves[b]
                learned = learned_tokens(half, logit_shift) & (half.document_ids == document)
                learnable += int(learned.sum())
                blocks = np.unique(half.block_ids[learned])
                for block in rng.choice(blocks, size=min(copies, len(blocks)), replace=False).tolist():
                    of_block = half.block_ids == block
                    columns = (each[of_block] for each in (half.input_ids, half.labels, learned))
                    cut.append(_CutRow(len(texts), int(half.block_starts[of_block][0]), *columns))
            texts.append(_Text(arrays["input_ids"][b][here], arrays["labels"][b][here]))

    # 1. The tokens, padded on the right
    lengths = [len(each.token_ids) for each in texts] + [each.start + len(each.token_ids) for each in cut]
    width, count = max(lengths), len(lengths)
    input_ids = np.zeros((count, width), dtype=np.int64)
    document_ids, block_ids = np.full((count, width), PADDING), np.full((count, width), CLEAN)
    for row, length in enumerate(lengths):
        document_ids[row, :length] = 0
    for row, text in enumerate(texts):
        input_ids[row, : lengths[row]] = text.token_ids
    for row, each in enumerate(cut, start=len(texts)):
        input_ids[row, : each.start] = texts[each.text].token_ids[: each.start]
        input_ids[row, each.start : lengths[row]] = each.token_ids
        block_ids[row, each.start : lengths[row]] = 0

    # 2. What they learn, and which outputs of the texts predict that, too
    ntp, matp, teacher = list[tuple[int, int]](), list[tuple[int, int]](), list[tuple[int, int]]()
    for row, text in enumerate(texts):
        ntp += [(row * width + at, label) for at, label in enumerate(text.labels[1:].tolist()) if label != IGNORE]
    for row, each in enumerate(cut, start=len(texts)):
        for place in np.flatnonzero(each.is_learned).tolist():
            position = each.start + place
            if 0 < position < lengths[each.text]:
                teacher.append((len(matp), each.text * width + position - 1))
            matp.append((row * width + position - int(logit_shift), int(each.labels[place])))
    has_teacher, teacher_index = _columns(teacher)
    positions = torch.arange(width).expand(count, -1)
    return TrainingInputs(
        input_ids=torch.from_numpy(input_ids),
        position_ids=positions,
        document_ids=torch.from_numpy(document_ids).long(),
        block_ids=torch.from_numpy(block_ids).long(),
        limits=positions + 1,
        ntp=Targets(*_columns(ntp)),
        matp=Targets(*_columns(matp)),
        has_teacher=has_teacher,
        teacher_index=teacher_index,
        rows=tuple(
            RowRuns((Run(length, 0),), ()) if row < len(texts) else RowRuns((), (Run(length, 0),))
            for row, length in enumerate(lengths)
        ),
        causal_block=True,
        matp_scale=learnable / len(matp) if matp else 1.0,
    )


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    first, second = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    return first, second
