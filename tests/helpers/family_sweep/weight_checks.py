"""What is checked of other forms of the weights: eight bits, prepacked, compiled."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from family_sweep.answers import decoded, expected, same_answer, same_tokens, settings
from setblock.model.loading.loading import load


def check_int8(folder: Path, prompts: Sequence[list[int]], new: int) -> None:
    """Exact and plain decoding of the quantised model are its own uncached decoding."""
    sbd = load(folder, quantization="int8")
    assert sbd.sbd_config is not None
    wanted = expected(sbd.model, prompts[:2], new, banned={0, sbd.sbd_config.mask_token_id})
    same_tokens(sbd, prompts[:2], wanted, settings("exact", new, 4))


def check_prepacked(folder: Path, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """With weights laid out for the processor."""
    sbd = load(folder)
    sbd.prepack()
    same_tokens(sbd, prompts[:2], wanted[:2], settings("exact", new, 4))


def check_compiled(folder: Path, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """By `torch.compile`, without the code that it would make of it: that takes a minute."""
    torch.compiler.reset()
    sbd = load(folder)
    sbd.compile(backend="eager")
    same_answer(decoded(sbd, [prompts[-1]], settings("exact", new, 4))[0], wanted[-1], "compiled")
