"""Answers: what a model should say, by Transformers alone, and what setblock decodes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from family_sweep.outcome import WrongError
from measuring.static_batch import static_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

NEW, PROMPTS = 14, (5, 30, 42)  # tokens


def settings(method: Any, new: int, block_size: int | None = None) -> DecodingSettings:
    """Greedy, without an end."""
    return DecodingSettings(
        method=method,
        block_size=block_size,
        max_new_tokens=new,
        banned_tokens=(0,),
        sampler=EntropyBounded(1.0),
        temperature=0.0,
    )


@torch.no_grad()
def expected(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], new: int, *, banned: set[int]
) -> list[list[Tensor]]:
    """Of each prompt, the logits [V] of each new token: Transformers' own uncached greedy decoding."""
    answers = []
    for prompt in prompts:
        ids, rows = list(prompt), []
        for _ in range(new):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            logits[list(banned)] = -torch.inf
            rows.append(logits)
            ids.append(int(logits.argmax()))
        answers.append(rows)
    return answers


def decoded(sbd: SBDModel, prompts: Sequence[Sequence[int]], each: DecodingSettings) -> list[list[int]]:
    """The answers of one batch."""
    batch = static_batch(sbd, prompts, [each] * len(prompts))
    for _ in batch.steps():
        pass
    return [batch.generation(row).token_ids for row in range(len(prompts))]


def same_tokens(
    sbd: SBDModel, prompts: Sequence[Sequence[int]], wanted: list[list[Tensor]], each: DecodingSettings
) -> None:
    """The longest prompt alone, and all of them beside each other."""
    what = f"{each.method} {each.block_size or ''}".strip()
    same_answer(decoded(sbd, prompts[-1:], each)[0], wanted[-1], f"{what}, a prompt of {len(prompts[-1])}")
    for prompt, answer, logits in zip(prompts, decoded(sbd, prompts, each), wanted, strict=True):
        same_answer(answer, logits, f"{what} in a batch, a prompt of {len(prompt)}")


def same_answer(found: Sequence[int], wanted: Sequence[Tensor], what: str) -> None:
    """Up to a tie, after which two texts may go different ways."""
    if len(found) != len(wanted):
        raise WrongError(f"{what}: {len(found)} tokens, not {len(wanted)}")
    for place, (token, logits) in enumerate(zip(found, wanted, strict=True)):
        best = float(logits.max())
        if float(logits[token]) < best:
            if best - float(logits[token]) > 1e-3 * max(1.0, abs(best)):
                raise WrongError(f"{what}: token {place} differs, by {best - float(logits[token]):.3g} of a logit")
            return
