"""vLLM's part in block decoding as plainly as it can be written: no cache and no batch, but its order of things.

A request has one kind of attention in a pass; its block is fed whole, up to the context's end; what a pass commits is handed
over.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from naive import full_logits
from setblock.decoding.generate import static_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.sbd_model import SBDModel
from setblock_vllm.parameters import width_of
from setblock_vllm.slots import BlockSlots


@dataclass
class Served:
    """A request and what has become of it."""

    prompt: list[int]
    settings: DecodingSettings
    ends: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    passes: int = 0

    @property
    def written(self) -> list[int]:
        return self.prompt + self.token_ids

    @property
    def finished(self) -> bool:
        assert self.settings.max_new_tokens is not None
        is_full = len(self.token_ids) >= self.settings.max_new_tokens
        return is_full or (bool(self.token_ids) and self.token_ids[-1] in self.ends)


@torch.inference_mode()
def serve(
    model: SBDModel,
    prompts: Sequence[list[int]],
    settings: Sequence[DecodingSettings],
    *,
    block_size: int = 16,
    context: Sequence[int] | None = None,
    interrupt: frozenset[int] = frozenset(),
    budgets: random.Random | None = None,
) -> list[Served]:
    """Serve requests, of which one more arrives with each step.

    Args:
        context: the position past the last that each request may be fed; by default the end of its answer, as `generate` has
            it.
        budgets: draws how much of a block a pass feeds at most; vLLM's own budget may be short at times.
        interrupt: steps after which every request is taken off, and fed again from the beginning with what it has written.
    """
    assert model.sbd_config is not None
    slots = BlockSlots(
        model.sbd_config,
        slots=len(prompts) + 1,
        block_size=block_size,
        vocab_size=model.vocab_size,
        device=model.device,
    )
    requests = [Served(list(p), s, tuple(model.end_of_text_ids)) for p, s in zip(prompts, settings, strict=True)]
    running, waiting, step = list[int](), list(range(len(requests))), 0
    while running or waiting:
        # 1. One pass over blocks, and over the prompt of one more
        if step in interrupt:
            for index in running:
                slots.close(index + 1)
            waiting, running = sorted([*running, *waiting]), []
        fed, logits = [], []
        for index in running:
            request = requests[index]
            start = len(request.written)
            end = request_end(request) if context is None else context[index]
            width = min(fed_at_most(model.sbd_config, request, block_size), end - start)
            fed.append(width if budgets is None else min(width, budgets.choice([1, 3, 5, 16])))
            tokens = request.written + slots.inputs([index + 1])[0, : fed[-1]].tolist()
            is_causal = bool(slots.causal[index + 1])
            logits.append(full_logits(model, tokens, len(tokens) if is_causal else start)[start:])
            request.passes += 1
        arriving = waiting[:1]
        for index in arriving:
            request = requests[index]
            slots.open(
                index + 1,
                replace(request.settings, block_size=request.settings.block_size or block_size),
                written=request.written,
                prompt_length=len(request.prompt),
                limit=request_end(request),
                ends=request.ends,
            )
            fed.append(1)
            logits.append(full_logits(model, request.written, len(request.written))[-1:])
        # 2. What it hands over
        together = [*running, *arriving]
        order = sorted(range(len(together)), key=lambda place: -together[place])  # none that means anything
        served = [together[place] for place in order]
        tokens_of, committed = slots.update(
            [index + 1 for index in served],  # slot 0 stays empty: no slot is a request's place in the batch
            torch.cat([logits[place] for place in order]),
            fed=[fed[place] for place in order],
        )
        for row, index in enumerate(served):
            for token in tokens_of[row, : int(committed[row])].tolist():
                if not requests[index].finished:
                    requests[index].token_ids.append(token)
        for index in [index for index in running if requests[index].finished]:
            slots.close(index + 1)
        running = [index for index in together if not requests[index].finished]
        waiting = waiting[1:]
        step += 1
    return requests


def request_end(request: Served) -> int:
    assert request.settings.max_new_tokens is not None
    return len(request.prompt) + request.settings.max_new_tokens


def fed_at_most(sbd_config: SBDModelConfig, request: Served, block_size: int) -> int:
    settings = request.settings
    return 1 if settings.method == "ntp" else width_of(sbd_config, settings.block_size or block_size)


def generated(model: SBDModel, prompt: list[int], settings: DecodingSettings) -> tuple[list[int], int]:
    """What `setblock.generate` gives, and the passes that it takes where each commit is a pass of its own unless blocks are
    causal, and one more at the end where the last tokens were never committed."""
    assert model.sbd_config is not None
    batch = static_batch(model, [prompt], [replace(settings, drafts="fixed")])
    batch.runner.fuses_commit = model.sbd_config.causal_block  # type: ignore[misc]
    passes = sum(not step.reading.is_prefill for step in batch.steps())
    state = batch.state
    passes += int(state.cache.committed[0] < state.answer.end[0])
    return batch.generation(0).token_ids, passes
