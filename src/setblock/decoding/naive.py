"""Block decoding as plainly as it can be written: one prompt, no cache, no batch, every pass from the beginning.

The oracle that the fast path is tested against. It shares with it only the sampler's rule and the choice of tokens.
"""

import torch
from torch import Tensor

from setblock.decoding.choice import choose_tokens
from setblock.decoding.samplers import Sampler
from setblock.model.attention import layer_windows
from setblock.model.sbd_model import SBDModel


@torch.inference_mode()
def naive_decode(
    model: SBDModel,
    prompt: list[int],
    *,
    block_size: int,
    max_new_tokens: int,
    sampler: Sampler,
    temperature: float = 0.0,
    seed: int = 0,
) -> tuple[list[int], int]:
    """Decode one prompt (Algorithm 2).

    Returns:
        The generated token ids, end-of-text included, and the number of passes after the prefill.
    """
    facts = model.facts
    assert facts is not None
    written, limit, passes = list(prompt), len(prompt) + max_new_tokens, 0
    while len(written) < limit:
        start = len(written)
        size = min(block_size, limit - start)
        block: list[int | None] = [None] * size  # None: still masked
        while True:
            # 1. One pass, in which only the block is bidirectional
            tokens = written + [facts.mask_token_id if token is None else token for token in block]
            logits = _logits(model, tokens, start)
            logits[:, facts.mask_token_id] = -torch.inf
            shift = int(facts.logit_shift)
            of_block = torch.stack([logits[start + i - shift] for i in range(size)])
            if facts.first_token_from_causal:
                of_block[0] = logits[start - 1]
            # 2. The first token of the answer is known as soon as the prompt is: the prefill gives it
            at_prefill = facts.first_token_from_causal and start == len(prompt) and block[0] is None
            passes += not at_prefill
            # 3. Reveal
            ends = [i for i, token in enumerate(block) if token in model.end_of_text_ids]
            needed = range(ends[0] if ends else size)
            open_ = [i for i in needed if block[i] is None and (i == 0 or not at_prefill)]
            candidates = torch.zeros((1, size), dtype=torch.bool)
            candidates[0, open_] = True
            reveal = sampler.select(of_block[None], candidates).reveal[0]
            chosen = choose_tokens(
                of_block[None],
                temperature=torch.tensor([temperature]),
                seeds=torch.tensor([seed]),
                positions=torch.arange(start, start + size)[None],
            )[0]
            for i in reveal.nonzero()[:, 0].tolist():
                block[i] = int(chosen[i])
            # 4. Is the block whole, and does the answer end in it?
            ends = [i for i, token in enumerate(block) if token in model.end_of_text_ids]
            needed = range(ends[0] + 1 if ends else size)
            if all(block[i] is not None for i in needed):
                written += [token for i in needed if (token := block[i]) is not None]
                break
        if ends:
            break
    return written[len(prompt) :], passes


def _logits(model: SBDModel, tokens: list[int], block_start: int) -> Tensor:
    """[T, V] logits of one full pass; the tokens from `block_start` on attend each other in both directions."""
    config = model.model.config.get_text_config()
    length = len(tokens)
    masks = {}
    for kind, window in layer_windows(config).items():
        allowed = torch.zeros((length, length), dtype=torch.bool)
        for query in range(length):
            last = length if query >= block_start else query + 1
            first = 0 if window is None else max(0, query - window + 1)
            allowed[query, first:last] = True
        zero_or_least = torch.where(allowed, 0.0, torch.finfo(model.model.dtype).min).to(model.model.dtype)
        masks[kind] = zero_or_least[None, None].to(model.device)
    output = model.model(
        input_ids=torch.tensor([tokens], device=model.device),
        position_ids=torch.arange(length, device=model.device)[None],
        attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
        use_cache=False,
    )
    logits: Tensor = output.logits[0].float().cpu()
    return logits
