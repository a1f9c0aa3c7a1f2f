"""Compute a model's logits as plainly as possible: no cache, each pass over the whole text. And decode by Transformers' own
loop. The oracles of the fast paths."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock.model.adapter.gate import block_only
from setblock.model.attention.attention import layer_windows
from setblock.model.sbd_model import SBDModel


@torch.inference_mode()
def full_logits(model: SBDModel, tokens: list[int], block_start: int) -> Tensor:
    """Return the logits [T, V] of one full pass; the tokens from `block_start` on attend each other in both directions."""
    config = model.model.config.get_text_config()
    length = len(tokens)
    masks = {}
    for kind, window in layer_windows(config).items():
        allowed = torch.zeros((length, length), dtype=torch.bool)
        for query in range(length):
            last = length if query >= block_start else query + 1
            first = 0 if window is None else max(0, query - window + 1)
            allowed[query, first:last] = True
        zero = torch.zeros((), dtype=model.model.dtype)
        zero_or_least = torch.where(allowed, zero, torch.finfo(zero.dtype).min)
        masks[kind] = zero_or_least[None, None].to(model.device)
    positions = torch.arange(length, device=model.device)[None]
    with block_only(model.model, positions >= block_start):
        output = model.model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=positions,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            use_cache=False,
        )
    logits: Tensor = output.logits[0].float().cpu()
    assert model.facts is not None
    logits[:, model.facts.mask_token_id] = -torch.inf
    return logits


def transformers_answer(
    model: PreTrainedModel, prompt: Sequence[int], *, max_new_tokens: int, **options: Any
) -> list[int]:
    """Return the token ids of the answer by Transformers' `generate`, end-of-text included. Greedy, unless its `options` say
    otherwise."""
    ids = torch.tensor([list(prompt)], device=model.device)
    how = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": max_new_tokens} | options
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    answer: list[int] = whole[0, len(prompt) :].tolist()
    return answer
