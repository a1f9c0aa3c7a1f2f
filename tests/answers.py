"""What the decoding tests share: decoding to the end, and samplers and models with a will of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.generate import Generation, OpenBatch, open_batch
from setblock.decoding.samplers import BlockView, Selection
from setblock.decoding.settings import DecodingSettings
from setblock.model.sbd_model import SBDModel


def decoded(sbd: SBDModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> OpenBatch:
    """The batch after its last step."""
    batch = open_batch(sbd, prompts, settings)
    for _ in batch.steps():
        pass
    return batch


def answers(sbd: SBDModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> list[Generation]:
    """The answers of one batch."""
    batch = decoded(sbd, prompts, settings)
    return [batch.generation(row) for row in range(len(prompts))]


@dataclass(frozen=True)
class InOrder:
    """Reveals the one candidate that comes first in `order`, and then the others from the left."""

    order: tuple[int, ...]

    def select(self, block: BlockView) -> Selection:
        candidates = block.candidates
        reveal = torch.zeros_like(candidates)
        for row in range(len(candidates)):
            places = [*self.order, *range(len(self.order), candidates.shape[1])]
            wanted = [place for place in places if place < candidates.shape[1] and candidates[row, place]]
            if wanted:
                reveal[row, wanted[0]] = True
        return Selection(reveal)


ORDERS = {
    "right to left": (7, 6, 5, 4, 3, 2, 1, 0),
    "left to right": (0, 1, 2, 3, 4, 5, 6, 7),
    "middle first": (4, 0, 1, 2, 3, 5, 6, 7),
    "middle first, then its right": (4, 7, 6, 5, 3, 2, 1, 0),
    "ends first": (7, 0, 6, 1, 5, 2, 4, 3),
}


@dataclass(frozen=True)
class Remembering:
    """Reveals the most likely candidate that it liked in the last pass too, and makes the distributions flatter with each pass:
    a sampler that uses all it may."""

    def select(self, block: BlockView) -> Selection:
        passes = block.memory.get("passes", torch.zeros_like(block.confidence))
        liked = block.memory.get("liked", torch.zeros_like(block.confidence))
        score = (block.confidence + liked).masked_fill(~block.candidates, -torch.inf)
        best = torch.zeros_like(block.candidates).scatter(1, score.argmax(dim=1, keepdim=True), True)
        memory = {"passes": passes + 1, "liked": (block.confidence > 0.5).float()}
        return Selection(best & block.candidates, block.logits / (1 + 0.1 * passes)[..., None], memory)


def reciting(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], *, after: int) -> SBDModel:
    """A model that says `token_ids` whatever the prompt, if that has `after` tokens: its output depends on the position alone,
    so every draft is right, and every order of revealing gives the same."""
    sbd = tiny_sbd("gpt2", tokenizer, mode="shifted", n_embd=128, n_layer=1, tie_word_embeddings=False, n_positions=128)
    with torch.no_grad():
        for name, weight in sbd.model.named_parameters():
            weight.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        sbd.model.transformer.wpe.weight.copy_(torch.eye(128))
        head = sbd.model.get_output_embeddings().weight
        for place, token_id in enumerate(token_ids):
            head[token_id, after - 1 + place] = 1.0
    return sbd
