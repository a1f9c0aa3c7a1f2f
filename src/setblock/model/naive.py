"""Compute a model's logits as plainly as possible: no cache, each pass over the whole text. The oracle of the fast
paths."""

import torch
from torch import Tensor

from setblock.model.attention import layer_windows
from setblock.model.gate import block_only
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
