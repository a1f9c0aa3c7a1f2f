"""What the decoding tests share: decoding to the end, requests of all kinds, samplers and models with a will of their own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from measuring.static_batch import StaticBatch, static_batch
from setblock.decoding.answer.generation import Generation
from setblock.decoding.samplers import SAMPLERS, BlockView, EntropyBounded, Sampler, Selection
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel


def decoded(sbd: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> StaticBatch:
    """The batch after its last step."""
    batch = static_batch(sbd, prompts, settings)
    for _ in batch.steps():
        pass
    return batch


def answers(
    sbd: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> list[Generation]:
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


OTHERS: list[Sampler] = [
    EntropyBounded(1e9),
    EntropyBounded(4.0),
    EntropyBounded(3.0, proxy="margin"),
    EntropyBounded(0.0),
    InOrder(ORDERS["ends first"]),
    Remembering(),
]


def drawn_settings(rng: random.Random, tokenizer: PreTrainedTokenizerBase, *, method: Any = None) -> DecodingSettings:
    """A request with about half of all parameters."""
    length = rng.randint(1, 16)

    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.4 else otherwise

    def token_ids(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(1, 300), rng.randint(1, most)))

    samplers = [*OTHERS, *(sampler() for sampler in SAMPLERS.values())]
    return DecodingSettings(
        method=method or rng.choice(["sbd", "sbd", "exact", "exact", "ntp"]),
        sampler=rng.choice(samplers),
        block_size=rng.choice([1, 2, 3, 5, 8, 16]),
        prompt_lookup=sometimes(rng.randint(0, 2), None),
        drafts="fixed",  # so that passes can be compared
        max_new_tokens=length,
        min_new_tokens=sometimes(rng.randint(0, length), 0),
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 2.0]),
        top_k=sometimes(rng.randint(1, 60), 0),
        top_p=sometimes(rng.uniform(0.2, 1), 1.0),
        min_p=sometimes(rng.uniform(0, 0.3), 0.0),
        repetition_penalty=sometimes(rng.choice([0.7, 1.3, 2.0]), 1.0),
        logit_bias=sometimes({each: rng.uniform(-5, 5) for each in token_ids(20)}, {}),
        banned_tokens=sometimes(token_ids(100), ()),
        stop=sometimes([tokenizer.decode([each]) for each in token_ids(8)], ()),
        stop_token_ids=sometimes(token_ids(10), ()),
        seed=rng.randint(-(2**63), 2**63 - 1),
        n=sometimes(rng.randint(1, 3), 1),
        logprobs=sometimes(rng.randint(0, 5), None),
    )


def assert_same(ours: Generation, theirs: Generation) -> None:
    assert ours.token_ids == theirs.token_ids
    assert ours.text == theirs.text
    assert ours.finish_reason == theirs.finish_reason
    assert (ours.logprobs is None) == (theirs.logprobs is None)
    for mine, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [value for _, value in mine.alternatives] == pytest.approx(
            [value for _, value in other.alternatives], abs=1e-3
        )


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
