"""vLLM's part in block decoding as plainly as it can be written: no cache and no batch, but its order of things.

A request is fed as many tokens as it may have, up to the context's end: what it commits, its block, and padding. What a pass
commits is handed over.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn.functional import pad

from measuring.static_batch import static_batch
from naive import full_logits
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.captured import Recorder
from setblock.model.protocol.runtime import next_power_of_two
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
    chunk: int = 10**6,
    most: int = 10**6,
    recorder: Callable[[], Recorder] | None = None,
) -> list[Served]:
    """Serve requests, of which one more arrives with each step.

    Args:
        context: the position past the last that each request may be fed; by default the end of its answer, as `generate` has
            it.
        budgets: draws how much of a block a pass feeds at most; vLLM's own budget may be short at times.
        chunk: the most tokens of a prompt in a pass.
        most: the most tokens of a block and what is committed before it in a pass.
        recorder: as in `BlockSlots`.
        interrupt: steps after which every request is taken off, and fed again from the beginning with what it has written.
    """
    assert model.sbd_config is not None
    slots = BlockSlots(
        model.sbd_config,
        slots=len(prompts) + 1,
        block_size=block_size,
        vocab_size=model.vocab_size,
        device=model.device,
        draft_text=model.draft_text,
        recorder=recorder,
    )
    requests = [Served(list(p), s, tuple(model.end_of_text_ids)) for p, s in zip(prompts, settings, strict=True)]
    running, waiting, step = list[int](), list(range(len(requests))), 0
    prompts: dict[int, int] = {}  # requests whose prompt is fed: how much of it was
    while running or waiting or prompts:
        # 1. One pass over blocks, and over the prompt of one more
        if step in interrupt:
            for index in running:
                slots.close(index + 1)
            for index in prompts:
                slots.close(index + 1)
            waiting, running, prompts = sorted([*running, *prompts, *waiting]), [], {}
        fed: dict[int, int] = {}
        for index in running:
            request = requests[index]
            end = request_end(request) if context is None else context[index]
            width = min(fed_at_most(request, block_size), end - len(request.written), most)
            fed[index] = width if budgets is None else min(width, budgets.choice([1, 3, 5, 16]))
            request.passes += 1
        for index in waiting[:1]:
            request = requests[index]
            slots.open(
                index + 1,  # slot 0 stays empty: no slot is a request's place in the batch
                replace(request.settings, block_size=request.settings.block_size or block_size),
                written=request.written,
                prompt_length=len(request.prompt),
                limit=request_end(request),
                ends=request.ends,
            )
            prompts[index] = 0
        for index, start in prompts.items():
            fed[index] = min(chunk, len(requests[index].written) - start)
        served = sorted(fed, reverse=True)  # an order that means nothing
        pass_of = slots.prepare(
            [index + 1 for index in served],
            torch.tensor([fed[index] for index in served]),
            most=max([1, *(fed[index] for index in running)]),
            has_prompts=bool(prompts),
        )
        # The head computes each token's logits once, however many places they predict
        most_fed = max([1, *(fed[index] for index in running)])
        assert pass_of.outputs.shape[1] <= (most_fed if recorder is None else next_power_of_two(most_fed))
        logits: dict[int, torch.Tensor] = {}  # [w, V] of the tokens that each request is fed
        for place, index in enumerate(served):
            written, start = requests[index].written, int(pass_of.start[place])
            causal, in_block = int(pass_of.causal[place]), int(pass_of.in_block[place])
            if index in prompts:
                assert (start, causal, in_block) == (prompts[index], fed[index], 0)
                logits[index] = full_logits(model, written[: start + causal], start + causal)[start:]
                continue
            # Of an answer that failed nothing is fed any more
            assert start == len(written) or (causal, in_block) == (0, 0)
            assert causal + in_block <= fed[index]
            tokens = written + pass_of.tokens[place, : causal + in_block].tolist()
            known = full_logits(model, tokens, start + causal)[start:]
            logits[index] = pad(known, (0, 0, 0, fed[index] - len(known)), value=torch.nan)  # of the padding
        # 2. What it hands over
        wanted = [logits[index][outputs - fed[index]] for index, outputs in zip(served, pass_of.outputs, strict=True)]
        tokens_of, committed = slots.update(pass_of, torch.cat(wanted))
        prompts = {index: start + fed[index] for index, start in prompts.items()}
        arrived = [index for index, start in prompts.items() if start == len(requests[index].written)]
        prompts = {index: start for index, start in prompts.items() if index not in arrived}
        for row, index in enumerate(served):
            for token in tokens_of[row, : int(committed[row])].tolist():
                if not requests[index].finished:
                    requests[index].token_ids.append(token)
        for index in [index for index in running if requests[index].finished]:
            slots.close(index + 1)
        running = [index for index in [*running, *arrived] if not requests[index].finished]
        waiting = waiting[1:]
        step += 1
    return requests


def request_end(request: Served) -> int:
    assert request.settings.max_new_tokens is not None
    return len(request.prompt) + request.settings.max_new_tokens


def fed_at_most(request: Served, block_size: int) -> int:
    settings = request.settings
    return 1 if settings.method == "ntp" else width_of(settings.block_size or block_size)


def generated(model: SBDModel, prompt: list[int], settings: DecodingSettings) -> tuple[list[int], int]:
    """What `setblock.generate` gives, and the passes that it takes, with one more at the end where the last tokens were never
    committed."""
    batch = static_batch(model, [prompt], [replace(settings, drafts="fixed")])
    passes = sum(not step.is_prefill for step in batch.steps())
    state = batch.state
    passes += int(state.cache.committed[0] < state.answer.end[0])
    return batch.generation(0).token_ids, passes
