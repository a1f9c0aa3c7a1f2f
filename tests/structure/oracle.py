"""What a grammar's answers are compared with: Transformers' `generate` with a logits processor of the same library."""

from collections.abc import Sequence

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from measuring.plain import transformers_answer
from setblock.model.sbd_model import SBDModel
from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import structure_of


class Held(LogitsProcessor):
    """Masks what the grammar does not allow; of one prompt."""

    def __init__(self, matcher: LLMatcher, prompt_length: int, end: int) -> None:
        self.matcher, self.prompt_length, self.end = matcher, prompt_length, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        written = input_ids[0, self.prompt_length :].tolist()
        if written:
            assert self.matcher.consume_token(written[-1])
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, count=scores.shape[-1], bitorder="little")).bool()
        return scores.masked_fill(~allowed, -torch.inf)


def by_transformers(
    sbd: SBDModel, prompt: Sequence[int], requested: object, *, tokens: int, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """The greedy answer's tokens, end of text included."""
    (end,) = sbd.end_of_text_ids
    held = Held(grammars_of(tokenizer).matcher(structure_of(requested)), len(prompt), end)
    return transformers_answer(sbd.model, prompt, max_new_tokens=tokens, eos_token_id=end, logits_processor=[held])
