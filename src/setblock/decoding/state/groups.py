"""Define the groups of values that a state has of each row of a batch, and how rows are joined and taken.

Knows tensors whose first dimension is the batch. Knows nothing of what changes them. Shapes: B rows, k the largest block size,
C positions, n alternatives of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

import torch
from torch import Tensor


@dataclass
class Cached:
    """Say what the cache holds of each row, [B] each.

    Attributes:
        committed: how many positions it holds exactly.
        prefill_end: how many it has to hold before the block is fed: the prompt, or what it held before it was evicted.
        prefilled: bool, rows whose prompt was fed to its end at least once; what they are fed again reveals nothing.
    """

    committed: Tensor
    prefill_end: Tensor
    prefilled: Tensor


@dataclass
class Block:
    """Hold the current block of each row.

    Attributes:
        start, end: [B]; empty where only a check of the last draft is left.
        needed_end: [B] the position past the last that is still needed: `end`, or just behind the block's first end-of-text.
        fed_size: [B] how many of its tokens a row is fed behind what is committed; 0 where none: rows of `ntp`, all rows of a
            model that was not trained for blocks, and exact rows that draft without it.
        passes: [B] how many passes have filled it.
        revealed: [B, k] bool, which of its positions are fixed.
        kinds: [B, k] of exact rows, where each drafted token came from (`drafts.gains`). Column 0 is position `committed`,
            even after the block has moved.
        positions: [B, k], running past `end` where the block is shorter than k.
    """

    start: Tensor
    end: Tensor
    needed_end: Tensor
    fed_size: Tensor
    passes: Tensor
    revealed: Tensor
    kinds: Tensor
    positions: Tensor = field(init=False)


@dataclass
class Answer:
    """Say how far the answer of each row goes, [B] each.

    Attributes:
        text_end: the end of the text that has no gap, drafts included.
        stop_end: where the answer is complete: behind its end-of-text, drafts included; else its limit.
        end: the end of the final text: it has no gap, and in exact rows it is next-token decoding's.
        finished: bool.
        stopped: bool, rows that `BatchState.finish` ended.
        failed: bool, rows whose logits were not numbers, or left no token. Nothing more is revealed in them; what they have is
            kept.
    """

    text_end: Tensor
    stop_end: Tensor
    end: Tensor
    finished: Tensor
    stopped: Tensor
    failed: Tensor


@dataclass
class Record:
    """Hold what passes have done to each row so far. [B] int64 unless stated.

    Attributes:
        prefill, commits: the number of passes of these kinds. Here, a pass of method `ntp` is a commit.
        number: of the last pass: 0 is the prefill.
        drafted, accepted: drafted tokens that were checked, and those of them that were right.
        revealing: [B, C] int64, the pass that revealed each position, 0 for the prefill.
        entropies: [B, C] float32, nats, of each position when it was revealed.
        logprob: [B, C] float32, and top_logprobs, top_ids [B, C, n], where log-probabilities are kept.
    """

    prefill: Tensor
    number: Tensor
    commits: Tensor
    drafted: Tensor
    accepted: Tensor
    revealing: Tensor
    entropies: Tensor
    logprob: Tensor
    top_logprobs: Tensor
    top_ids: Tensor


Group = TypeVar("Group", Cached, Block, Answer, Record)


def joined_group(groups: Sequence[Group]) -> Group:
    """Return the rows of several groups in one."""
    names = [each.name for each in fields(groups[0]) if each.init]
    return type(groups[0])(**{name: stacked([getattr(group, name) for group in groups]) for name in names})


def taken_group(group: Group, rows: Tensor) -> Group:
    """Return a group of `rows` [n] only."""
    return type(group)(**{each.name: getattr(group, each.name)[rows] for each in fields(group) if each.init})


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Stack `parts` [B, ...] as [sum of all B, ...]; they may differ in all sizes. Zeros fill them up."""
    sizes = [max(of_parts) for of_parts in zip(*(part.shape[1:] for part in parts), strict=True)]
    return torch.cat([fitted(part, *sizes) for part in parts])


def fitted(part: Tensor, *sizes: int) -> Tensor:
    """Return [B, *sizes, ...] of `part` [B, ...], each dimension cut or padded with zeros at its end."""
    for dim, size in enumerate(sizes, start=1):
        if size > part.shape[dim]:  # PyTorch 2.9 pads no tensor whose last dimension is empty
            missing = part.new_zeros((*part.shape[:dim], size - part.shape[dim], *part.shape[dim + 1 :]))
            part = torch.cat([part, missing], dim=dim)
        part = part.narrow(dim, 0, size)
    return part
