"""How long drafts are never changes a text: random lengths in every pass, for each row, against plain decoding."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import assert_same, drawn_settings
from families import MODES, save_with_random_adapter, tiny_sbd
from measuring.static_batch import static_batch
from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, EngineLimits, Request
from setblock.engine.generate import generate_batch, stream
from setblock.engine.offline import answered
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel


@dataclass
class AnyLengths(DraftLengths):
    """Chooses any lengths that there may be, and remembers them."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    seen: list[tuple[int, DraftLength]] = field(default_factory=list)

    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        chosen = [self._any(row) for row in rows]
        self.seen += [(len(row.reached), length) for row, length in zip(rows, chosen, strict=True)]
        return chosen

    def _any(self, row: RowDraft) -> DraftLength:
        drafted = self.rng.randint(0, len(row.reached))
        fed = min(row.size, self.rng.choice([0, 0, 1, 2, row.size, self.rng.randint(0, row.size)]))
        return DraftLength(drafted, fed)


def tiny(tokenizer: PreTrainedTokenizerBase, mode: str, **more: Any) -> tuple[SBDModel, AnyLengths]:
    sbd = tiny_sbd("llama", tokenizer, mode=mode, **more)
    sbd.draft_lengths = lengths = AnyLengths()
    return sbd, lengths


SETTINGS = [
    DecodingSettings(
        sampler=EntropyBounded(gamma),
        block_size=size,
        max_new_tokens=length,
        temperature=temperature,
        prompt_lookup=lookup,
        seed=size,
        **more,
    )
    for gamma, size, length, temperature, lookup, more in (
        (float("inf"), 8, 30, 0.0, 0, {}),
        (4.0, 5, 17, 0.7, 1, {}),
        (3.0, 16, 40, 0.0, 1, {"repetition_penalty": 1.4}),
        (2.0, 7, 22, 1.0, 2, {"min_new_tokens": 9}),
        (float("inf"), 16, 25, 0.0, 0, {"logprobs": 2}),
    )
]


def assert_plain(ours: Sequence[Any], model: SBDModel, prompts: Sequence[list[int]], settings: Sequence[Any]) -> None:
    plain = generate_batch(model, prompts, settings=[replace(each, method="ntp") for each in settings])
    for found, expected in zip(ours, plain, strict=True):
        assert_same(found, expected)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", MODES)
def test_any_length_gives_plain_decodings_text_in_a_batch(
    mode: str, seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, lengths = tiny(trained_tokenizer, mode, dtype=torch.float64)
    lengths.rng.seed(seed)
    rows = [prompts[row % 3] for row in range(len(SETTINGS))]
    assert_plain(generate_batch(sbd, rows, settings=SETTINGS), sbd, rows, SETTINGS)
    assert (
        len({(each.drafted < there, each.fed > 0) for there, each in lengths.seen}) == 4
    )  # cut or not, with a block or not


@pytest.mark.parametrize("seed", range(8))
def test_any_length_gives_plain_decodings_text_for_any_request(
    seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, lengths = tiny(trained_tokenizer, list(MODES)[seed % len(MODES)], dtype=torch.float64)
    rng = random.Random(seed)
    lengths.rng.seed(seed)
    settings = [
        replace(drawn_settings(rng, trained_tokenizer, method="exact"), n=1, drafts="adaptive") for _ in range(6)
    ]
    rows = [prompts[row % 3] for row in range(len(settings))]
    assert_plain(generate_batch(sbd, rows, settings=settings), sbd, rows, settings)


@pytest.mark.parametrize("mode", MODES)
def test_any_length_gives_plain_decodings_text_in_a_stream(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, _ = tiny(trained_tokenizer, mode, dtype=torch.float64)
    for prompt, each in zip(prompts * 2, SETTINGS, strict=False):
        chunks = list(stream(sbd, prompt, settings=each))
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
        assert_plain([chunks[-1].generation], sbd, [prompt], [each])


@pytest.mark.parametrize("seed", range(4))
def test_any_length_gives_plain_decodings_text_in_the_engine(
    seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """With little room, so that requests wait, come, go, and are preempted."""
    sbd, lengths = tiny(trained_tokenizer, "shifted", dtype=torch.float64)
    lengths.rng.seed(seed)
    settings = [*SETTINGS, *(replace(each, method="sbd") for each in SETTINGS[:2]), replace(SETTINGS[0], method="ntp")]
    rows = [prompts[row % 3] for row in range(len(settings))]
    engine = Engine(sbd, EngineLimits(max_num_seqs=4, kv_tokens=160, max_num_batched_tokens=24, page_tokens=8))
    requests = [Request(str(row), *pair) for row, pair in enumerate(zip(rows, settings, strict=True))]
    found = dict(answered(engine, requests))
    assert engine.figures.preemptions > 0
    assert lengths.seen
    exact = [row for row, each in enumerate(settings) if each.method == "exact"]
    assert_plain(
        [found[str(row)] for row in exact], sbd, [rows[row] for row in exact], [settings[row] for row in exact]
    )
    for row in (5, 6):
        assert_same(found[str(row)], generate_batch(sbd, [rows[row]], settings=[settings[row]])[0])


def test_any_length_gives_plain_decodings_text_of_an_adapter(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], tmp_path: Path
) -> None:
    """It drafts alone: plain decoding is the model's without it. In a batch, and in the engine."""
    pytest.importorskip("peft")
    tiny_one = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    tiny_one.prepare_for_training(block_sizes=[4, 8], logit_shift=True, noisy_adapter=True)
    save_with_random_adapter(tiny_one, tmp_path)
    sbd = load(tmp_path, dtype=torch.float64)
    sbd.draft_lengths = lengths = AnyLengths()
    settings = [replace(each, block_size=min(8, each.block_size or 8)) for each in SETTINGS]
    rows = [prompts[row % 3] for row in range(len(settings))]
    assert_plain(generate_batch(sbd, rows, settings=settings), sbd, rows, settings)
    requests = [Request(str(row), *pair) for row, pair in enumerate(zip(rows, settings, strict=True))]
    found = dict(answered(Engine(sbd, EngineLimits(max_num_seqs=3)), requests))
    assert_plain([found[str(row)] for row in range(len(rows))], sbd, rows, settings)
    assert any(each.fed for _, each in lengths.seen)


def test_rows_that_are_taken_have_chosen_once(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """An engine that puts a row off takes it with what its next pass is fed, which was chosen already."""
    sbd, lengths = tiny(trained_tokenizer, "shifted")
    batch = static_batch(sbd, prompts[:2], [replace(SETTINGS[0], max_new_tokens=60)] * 2)
    for _ in batch.steps():
        schedules, count = batch.schedules(batch.runner), len(lengths.seen)
        assert batch.select([1]).schedules(batch.runner) == schedules[1:]
        assert len(lengths.seen) == count
    assert lengths.seen
