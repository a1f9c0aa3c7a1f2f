"""vLLM's part in block decoding as plainly as it can be written: no cache and no batch, but its order of things.

A request has one kind of attention in a pass; its block is fed whole, up to the context's end; what a pass commits is handed
over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from setblock.decoding.generate import open_batch
from setblock.decoding.settings import DecodingSettings
from setblock.integrations.vllm.slots import BlockSlots, Rows, with_block_size
from setblock.model.naive import full_logits
from setblock.model.sbd_model import SBDModel


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
) -> list[Served]:
    """Serve requests, of which one more arrives with each step.

    Args:
        context: the position past the last that each request may be fed; by default the end of its answer, as `generate` has
            it.
        interrupt: steps after which every request is taken off, and fed again from the beginning with what it has written.
    """
    assert model.facts is not None
    vocab_size = model.model.get_output_embeddings().weight.shape[0]
    slots = BlockSlots(
        model.facts, slots=len(prompts) + 1, block_size=block_size, vocab_size=vocab_size, device=model.device
    )
    requests = [Served(list(p), s, tuple(model.end_of_text_ids)) for p, s in zip(prompts, settings, strict=True)]
    running, waiting, step = list[int](), list(range(len(requests))), 0
    while running or waiting:
        # 1. Blocks
        if running:
            fed, logits = [], torch.zeros((len(running), block_size, vocab_size))
            rows = _rows(running)
            inputs = slots.inputs(rows)
            for row, index in enumerate(running):
                request, width = requests[index], int(slots.width[index + 1])
                start = len(request.written)
                end = request_end(request) if context is None else context[index]
                fed.append(min(width, end - start))
                tokens = request.written + inputs[row, : fed[-1]].tolist()
                is_causal = bool(slots.causal[index + 1])
                given = full_logits(model, tokens, len(tokens) if is_causal else start)
                logits[row, : fed[-1]] = given[start:]
                request.passes += 1
            tokens_of, committed = slots.step(rows, logits, fed=torch.tensor(fed))
            for row, index in enumerate(running):
                for token in tokens_of[row, : int(committed[row])].tolist():
                    if not requests[index].finished:
                        requests[index].token_ids.append(token)
            running = [index for index in running if not requests[index].finished]
        # 2. Prompts
        if step in interrupt:
            waiting, running = sorted([*running, *waiting]), []
        if waiting:
            index = waiting.pop(0)
            request = requests[index]
            limit = request_end(request)
            slots.open(index + 1, with_block_size(request.settings, block_size), limit=limit, ends=request.ends)
            given = full_logits(model, request.written, len(request.written))[-1:]
            start = torch.tensor([len(request.written)])
            slots.begin(_rows([index]), given, start=start, is_fresh=torch.tensor([not request.token_ids]))
            running.append(index)
        step += 1
    return requests


def request_end(request: Served) -> int:
    assert request.settings.max_new_tokens is not None
    return len(request.prompt) + request.settings.max_new_tokens


def _rows(indices: Sequence[int]) -> Rows:
    slots = [index + 1 for index in indices]  # slot 0 stays empty: no slot is a request's place in the batch
    return Rows(torch.tensor(slots), slots)


def generated(model: SBDModel, prompt: list[int], settings: DecodingSettings) -> tuple[list[int], int]:
    """What `setblock.generate` gives, and the passes that it takes where each commit is a pass of its own: one more for each
    commit that was also the next block's first pass, and one at the end where the last tokens were never committed."""
    batch = open_batch(model, [prompt], [settings])
    passes = 0
    for step in batch.steps():
        rejected = step.check is not None and bool(step.check.rejected[0])
        filled = bool(step.revealed[0].any()) or (not rejected and not bool(step.finished[0]))
        is_split = bool(step.committed[0]) and not rejected and filled and settings.method != "ntp"
        passes += 0 if step.is_prefill else 1 + is_split
    state = batch.state
    passes += int(state.committed[0] < state.answer_end[0])
    return batch.generation(0).token_ids, passes
