"""Decode in blocks as plainly as possible: one prompt, no cache, no batch, each pass over the whole text.

The oracle that the fast paths are tested against. It shares with them only the sampler's rule and the choice of tokens.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from setblock.decoding.drafts.lookup import SURE
from setblock.decoding.samplers import BlockView, Memory, Sampler
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.state import Columns
from setblock.decoding.step.choice import choose_tokens, draws_of, random_tokens
from setblock.model.adapter.adapter import block_only
from setblock.model.attention.attention import has_state, layer_windows
from setblock.model.protocol.draft_text import LONGEST_MATCH
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel

Block = list[int | None]  # None: still masked
FullLogits = Callable[[Any, list[int], int], Tensor]
"""Of a model, tokens and where the block begins: [T, V] logits of one full pass."""


@torch.inference_mode()
def full_logits(model: SBDModel, tokens: list[int], block_start: int) -> Tensor:
    """Return the logits [T, V] of one full pass; the tokens from `block_start` on attend each other in both directions, unless
    the model's blocks are causal."""
    assert model.sbd_config is not None
    config = model.model.config.get_text_config()
    length = len(tokens)
    masks: dict[str, Tensor | None] = {}
    if has_state(config):  # such a model is causal, and needs no mask
        masks[""] = None
    windows = {} if has_state(config) else layer_windows(config)
    for kind, window in windows.items():
        # A row for each query, which sees the keys from its first to before its last
        queries, keys = torch.arange(length)[:, None], torch.arange(length)
        sees_all = (queries >= block_start) & (not model.sbd_config.causal_block)
        last = torch.where(sees_all, length, queries + 1)
        first = 0 if window is None else (queries - window + 1).clamp(min=0)
        allowed = (keys >= first) & (keys < last)
        zero = torch.zeros((), dtype=model.model.dtype)
        zero_or_least = torch.where(allowed, zero, torch.finfo(zero.dtype).min)
        masks[kind] = zero_or_least[None, None].to(model.device)
    positions = torch.arange(length, device=model.device)[None]
    more = {} if "cache_params" in inspect.signature(model.model.forward).parameters else {"position_ids": positions}
    with block_only(model.model, positions >= block_start):
        output = model.model(
            input_ids=torch.tensor([tokens], device=model.device),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            use_cache=False,
            **more,
        )
    logits: Tensor = output.logits[0].float().cpu()
    if model.sbd_config.mask_token_id is not None:
        logits[:, model.sbd_config.mask_token_id] = -torch.inf
    return logits


@torch.inference_mode()
def naive_decode(
    model: LanguageModel,
    prompt: list[int],
    settings: DecodingSettings,
    *,
    sampler: Sampler,
    forward: FullLogits,
) -> tuple[list[int], int]:
    """Decode one prompt by method `sbd` (Algorithm 2). Of the settings, those that change the logits are not looked at.

    Returns:
        The generated token ids, end-of-text included, and the number of passes after the prefill.
    """
    sbd_config, block_size, new_tokens = model.sbd_config, settings.block_size, settings.max_new_tokens
    assert sbd_config is not None
    assert block_size is not None
    assert new_tokens is not None
    written, limit, passes = list(prompt), len(prompt) + new_tokens, 0
    block, memory = _refilled([], block_size, limit - len(written)), _nothing()
    while True:
        # 1. One pass, in which only the block is bidirectional
        start = len(written)
        logits = _block_logits(
            model, forward(model, written + _masked(model, block, settings, start), start), start, len(block)
        )
        # 2. The first token of the answer is known as soon as the prompt is: the prefill gives it
        at_prefill = sbd_config.first_token_from_causal and start == len(prompt) and block[0] is None
        passes += not at_prefill
        # 3. Reveal
        reachable = range(1) if at_prefill else range(len(block))
        chosen, memory = _reveal(model, logits, block, reachable, sampler, memory)
        memory = _nothing() if at_prefill else memory  # it fills no block
        tokens = _choose(logits, settings, start)
        for i in chosen:
            block[i] = tokens[i]
        # 4. Is the block whole, and does the answer end in it?
        run, is_whole = _run(model, block)
        if not is_whole:
            continue
        written += run
        if len(written) == limit or run[-1] in model.end_of_text_ids:
            return written[len(prompt) :], passes
        block = _refilled([], block_size, limit - len(written))
        memory = _nothing()


@torch.inference_mode()
def naive_exact(
    model: LanguageModel,
    prompt: list[int],
    settings: DecodingSettings,
    *,
    sampler: Sampler,
    forward: FullLogits,
) -> tuple[list[int], int]:
    """Decode one prompt by method `exact`. Arguments and result as in `naive_decode`."""
    block_size, new_tokens = settings.block_size, settings.max_new_tokens
    assert block_size is not None
    assert new_tokens is not None
    limit, passes = len(prompt) + new_tokens, 0

    prefill = forward(model, prompt, len(prompt))
    kept = list(prompt)  # what is verified and committed
    draft, _ = _run(
        model,
        _copied(model, kept, _refilled(_choose(prefill[-1:], settings, len(kept)), block_size, new_tokens), settings),
    )
    while True:
        # 1. Only a draft's first token is sure to stay
        sure = [*kept[len(prompt) :], *draft[:1]]
        if sure[-1] in model.end_of_text_ids or len(sure) == new_tokens:
            return sure, passes
        # 2. The draft is fed with a first pass over the block behind it, if it leaves room for one
        start = len(kept) + len(draft)
        room = 0 if draft[-1] in model.end_of_text_ids else limit - start
        block = _refilled([], block_size, room)
        logits = forward(model, kept + draft + _masked(model, block, settings, start), start)
        passes += 1
        # 3. Check the draft against the causal logits: keep what agrees, and correct the first that does not
        causal = _choose(logits[len(kept) : start - 1], settings, len(kept) + 1)
        agreed = next((i for i, right in enumerate(causal) if right != draft[i + 1]), len(causal))
        kept += draft[: agreed + 1]
        if agreed < len(causal):
            start, block = len(kept), _refilled([causal[agreed]], block_size, limit - len(kept))
            draft, _ = _run(model, _copied(model, kept, block, settings))
            continue
        if not block:
            return kept[len(prompt) :], passes
        # 4. Fill the block; its first token is next-token decoding's
        of_block = _block_logits(model, logits, start, len(block), first_from_causal=True)
        chosen, _ = _reveal(model, of_block, block, range(len(block)), sampler, _nothing())
        tokens = _choose(of_block, settings, start)
        entropy = torch.special.entr(of_block.softmax(dim=-1)).sum(dim=-1).tolist()
        for i in {*chosen, 0}:
            block[i] = tokens[i] if block[i] is None else block[i]
        known = {0} | {i for i in chosen if entropy[i] <= SURE}
        draft, _ = _run(model, _copied(model, kept, block, settings, sure=known))


def _copied(
    model: LanguageModel,
    written: Sequence[int],
    block: Block,
    settings: DecodingSettings,
    *,
    sure: Collection[int] = (0,),
) -> Block:
    """Return a draft with copies of what last followed the text's end, up to the first `sure` token that disagrees."""
    assert block[0] is not None
    text, longest = [*written, block[0]], 0
    for end in range(1, len(text)):
        matched = 0
        while matched < min(end, LONGEST_MATCH) and text[end - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched and matched >= longest:
            longest, place = matched, end
    draft_text: list[int] = [] if model.draft_text is None else model.draft_text.token_ids.tolist()
    elsewhere, place_there = _most_often(draft_text, text)
    if not settings.prompt_lookup or max(longest, elsewhere) < settings.prompt_lookup:
        return block
    filled = list(block)
    for i in range(1, len(block)):
        copied = min(place_there + i, len(draft_text)) - 1
        text.append(draft_text[copied] if elsewhere > longest else text[place + i - 1])
        if i not in sure:
            filled[i] = text[-1]
        elif filled[i] != text[-1]:
            break
    return filled


def _most_often(others: list[int], text: list[int]) -> tuple[int, int]:
    """Return how many of a text's last tokens other texts have, and the last place where these continue as most often."""
    for matched in range(min(LONGEST_MATCH, len(text)), 0, -1):
        ends = [end for end in range(matched, len(others)) if others[end - matched : end] == text[-matched:]]
        if ends:
            count = Counter(others[end] for end in ends)
            return matched, max(ends, key=lambda end: (count[others[end]], end))
    return 0, 0


def _refilled(known: Sequence[int | None], block_size: int, room: int) -> Block:
    """Return a block that begins with the known tokens."""
    return [*known, *[None] * block_size][: min(block_size, room)]


def _run(model: LanguageModel, block: Block) -> tuple[list[int], bool]:
    """Return the tokens of a block before its first gap, up to its first end-of-text, and whether no more is needed."""
    needed = block[: _needed(model, block)]
    is_whole = None not in needed
    return [token for token in (needed if is_whole else needed[: needed.index(None)]) if token is not None], is_whole


def _nothing() -> Memory:
    return {}


def _masked(model: LanguageModel, block: Block, settings: DecodingSettings, start: int) -> list[int]:
    assert model.sbd_config is not None
    noise = [model.sbd_config.mask_token_id] * len(block)
    if model.sbd_config.noise_vocab_size is not None:
        seeds, positions = torch.tensor([settings.seed]), start + torch.arange(len(block))[None]
        noise = random_tokens(seeds, positions, vocab_size=model.sbd_config.noise_vocab_size)[0].tolist()
    return [instead if token is None else token for token, instead in zip(block, noise, strict=True)]


def _needed(model: LanguageModel, block: Block) -> int:
    """Return how many tokens of a block count: those up to its first end-of-text."""
    return next((i + 1 for i, token in enumerate(block) if token in model.end_of_text_ids), len(block))


def _reveal(
    model: LanguageModel, logits: Tensor, block: Block, reachable: range, sampler: Sampler, memory: Memory
) -> tuple[list[int], Memory]:
    """Return the positions that the sampler reveals for logits [k, V], and what it remembers."""
    masked = torch.tensor([token is None for token in block])
    candidates = masked.clone()
    candidates[_needed(model, block) :] = False
    candidates[reachable.stop :] = False
    selection = sampler.select(BlockView.of(logits[None], candidates[None], ~masked[None], memory))
    assert selection.logits is None
    return selection.reveal[0].nonzero()[:, 0].tolist(), selection.memory


def columns_of(settings: Sequence[DecodingSettings]) -> Columns:
    """Return the columns of requests with these settings, as far as they say how tokens are drawn."""
    rows = [RequestParams(each, block_size=1, prompt_length=0, limit=1, ends=()) for each in settings]
    return Columns.of(rows, device=torch.device("cpu"))


def _choose(logits: Tensor, settings: DecodingSettings, start: int) -> list[int]:
    """Return the tokens chosen from logits [n, V] at the positions from `start` on."""
    draws = draws_of([settings], columns_of([settings]), vocab_size=logits.shape[-1])
    chosen: list[int] = choose_tokens(logits[None], draws, positions=start + torch.arange(len(logits))[None])[
        0
    ].tolist()
    return chosen


def _block_logits(
    model: LanguageModel, logits: Tensor, start: int, size: int, *, first_from_causal: bool = False
) -> Tensor:
    """Return the block's logits [size, V] at `start` from the logits [T, V] of a whole pass."""
    assert model.sbd_config is not None
    shift = int(model.sbd_config.logit_shift)
    of_block = torch.stack([logits[start + i - shift] for i in range(size)])
    if model.sbd_config.first_token_from_causal or first_from_causal:
        of_block[0] = logits[start - 1]
    return of_block
