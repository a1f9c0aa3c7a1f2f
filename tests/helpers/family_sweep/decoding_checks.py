"""What is checked of decoding: limits, blocks, the engine, and Transformers' own `generate`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from family_sweep.answers import NEW, decoded, same_answer, settings
from family_sweep.outcome import WrongError
from family_sweep.tiny import prompts_of
from naive import full_logits, naive_decode
from setblock.decoding.samplers import EntropyBounded
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.integrations.transformers import generate as sbd_generate
from setblock.model.sbd_model import SBDModel


def check_refusal(sbd: SBDModel, context: int) -> None:
    """What does not fit a limited context is refused."""
    try:
        decoded(sbd, prompts_of([context - 2]), settings("ntp", NEW))
    except SetBlockError:
        return
    raise WrongError(f"more than {context} tokens are not refused")


def check_blocks(sbd: SBDModel, prompts: Sequence[list[int]], new: int) -> None:
    """Method `sbd` is the naive twin's, and a request in a batch what it is alone."""
    each = settings("sbd", min(12, new), 4)
    together = decoded(sbd, prompts, each)
    if decoded(sbd, prompts[:1], each)[0] != together[0]:
        raise WrongError(f"sbd in a batch, a prompt of {len(prompts[0])}: not what it is alone")
    with banned_head(sbd):
        forward = full_logits
        naive, _ = naive_decode(sbd, prompts[-1], each, sampler=EntropyBounded(1.0), forward=forward)
    if naive != together[-1]:
        raise WrongError("sbd: not what the naive twin decodes")


@contextmanager
def banned_head(sbd: SBDModel) -> Iterator[None]:
    """The naive twin knows no banned tokens: their logits are low for a while."""

    def ban(_: Any, __: Any, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.tensor([0]), -1e4)

    handle = sbd.model.get_output_embeddings().register_forward_hook(ban)
    try:
        yield
    finally:
        handle.remove()


def check_engine(sbd: SBDModel, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int) -> None:
    """Requests that come and go."""
    engine = Engine(sbd, EngineLimits(max_num_seqs=3, kv_tokens=256, max_num_batched_tokens=40, page_tokens=4))
    methods = ("ntp", "exact", "exact")
    for number, prompt in enumerate(prompts):
        engine.submit(Request(str(number), prompt, settings(methods[number], new, 4)))
    answers = {}
    while not engine.is_idle:
        for progress in engine.step():
            if progress.generation is not None:
                answers[int(progress.id)] = progress.generation.token_ids
    for number, logits in enumerate(wanted):
        same_answer(answers[number], logits, f"the engine, a prompt of {len(prompts[number])}")


def check_generate(
    sbd: SBDModel, theirs: PreTrainedModel, prompts: Sequence[list[int]], wanted: list[list[Tensor]], new: int
) -> None:
    """Transformers' own `generate`, decoding in blocks."""
    try:
        found = sbd_generate(
            torch.tensor([prompts[-1]]), model=theirs, method="exact", block_size=4, max_new_tokens=new, min_new_tokens=new,
            do_sample=False, pad_token_id=0, eos_token_id=0,
        )  # fmt: skip
    except ValueError as error:
        if "attn_implementation" in str(error) or isinstance(error, SetBlockError):
            raise SetBlockError(str(error)) from error
        raise
    assert isinstance(found, Tensor)
    same_answer(found[0, len(prompts[-1]) :].tolist(), wanted[-1], "generate")
