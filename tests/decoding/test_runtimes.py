"""A runtime that is no PyTorch module: what it needs is `setblock.model.protocol`, and nothing else.

Its model is a few functions of tokens and positions; its cache holds token ids. It commits in passes of their own, as llama.cpp
and vLLM do, or with the next block, and either way gives what plain decoding by hand gives.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from answers import answers, assert_same
from families import MODES, tiny_sbd
from measuring.static_batch import static_batch
from naive import naive_decode, naive_exact
from running import Log
from setblock.decoding.samplers import EntropyBounded, FixedCount, Sampler
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.generate import generate, generate_batch, stream
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.runtime import LanguageModel, ModelInput, Runner
from setblock.model.protocol.sbd_config import SBDModelConfig

pytestmark = pytest.mark.usefixtures("longest_drafts")

MASK = 1


@dataclass
class NaiveModel:
    """A model of one layer of attention, in float64. Not a `torch.nn.Module`: a dozen matrices and what is done with them."""

    tokenizer: PreTrainedTokenizerBase
    sbd_config: SBDModelConfig | None
    fuses_commit: bool = False
    end_of_text_ids: Sequence[int] = (0,)
    draft_text: DraftText | None = None
    context_length: int | None = 120
    needs_whole_rows: bool = False
    static_kind: None = None
    static_state: None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    runners: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        size, self.vocab_size = 16, len(self.tokenizer)

        def matrix(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.tokens, self.places = matrix(self.vocab_size, size), matrix(256, size)
        self.query, self.key, self.value, self.head = (matrix(size, n) for n in (size, size, size, self.vocab_size))

    def forward(self, tokens: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """[T, V] logits of tokens [T]; each query sees what `seen` [T, T] bool says."""
        inputs = self.tokens[tokens] + self.places[positions]
        scores = (inputs @ self.query) @ (inputs @ self.key).T / 16
        attended = scores.masked_fill(~seen, -math.inf).softmax(dim=-1) @ (inputs @ self.value)
        return (inputs + attended).tanh() @ self.head

    def runner(self, *, pages: int, page_tokens: int, rows: int, whole_rows: bool = False) -> "NaiveRunner":
        made = NaiveRunner(self, slots=pages * page_tokens, page_tokens=page_tokens, pages=[])
        self.runners.append(made)
        return made


class NaiveRunner(Runner):
    """Keeps the tokens of each position in a slot, and computes everything anew from them in each pass."""

    def __init__(self, model: NaiveModel, *, slots: int, page_tokens: int, pages: Sequence[Sequence[int]]) -> None:
        self.fuses_commit = model.fuses_commit
        self.passes = 0
        self._model, self._page_tokens, self._pages = model, page_tokens, pages
        self._cache = [-1] * slots

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        self._pages = pages

    def logits(self, inputs: ModelInput) -> Tensor:
        self.passes += 1
        given = torch.zeros((*inputs.outputs.shape, self._model.vocab_size))
        for place, row in enumerate(inputs.plan.rows.tolist()):
            real = inputs.is_real[place]
            fed, positions = inputs.tokens[place][real].tolist(), inputs.positions[place][real].tolist()
            in_block = inputs.in_block[place][real]
            assert self.fuses_commit or bool(in_block.all()) or not bool(in_block.any())
            for token_id, position in zip(fed, positions, strict=True):
                self._cache[self._slot(row, position)] = token_id
            end = positions[-1] + 1
            tokens = [self._cache[self._slot(row, position)] for position in range(end)]
            assert -1 not in tokens, "all that a row sees it has been fed"
            limits = torch.arange(1, end + 1)
            limits[positions] = inputs.limits[place][real]
            seen = torch.arange(end) < limits[:, None]
            logits = self._model.forward(torch.tensor(tokens), torch.arange(end), seen)[positions].float()
            for output in inputs.wanted[place].nonzero()[:, 0].tolist():
                given[place, output] = logits[inputs.outputs[place, output]]
        return given

    def _slot(self, row: int, position: int) -> int:
        page = self._pages[row][position // self._page_tokens]
        return page * self._page_tokens + position % self._page_tokens


def by_hand(model: Any, tokens: list[int], block_start: int) -> Tensor:
    """[T, V] logits of one full pass, for the plain twins of decoding."""
    length = len(tokens)
    limits = torch.arange(1, length + 1)
    limits[block_start:] = length
    seen = torch.arange(length) < limits[:, None]
    logits = model.forward(torch.tensor(tokens), torch.arange(length), seen).float()
    logits[:, MASK] = -math.inf
    found: Tensor = logits
    return found


def naive_model(tokenizer: PreTrainedTokenizerBase, mode: str = "shifted", **changes: Any) -> NaiveModel:
    return NaiveModel(tokenizer, SBDModelConfig(mask_token_id=MASK, block_sizes=(2, 16), **MODES[mode]), **changes)


SAMPLERS: list[Sampler] = [EntropyBounded(4.0), EntropyBounded(0.0), EntropyBounded(math.inf), FixedCount(3)]


def settings_of(method: Any) -> list[DecodingSettings]:
    return [
        DecodingSettings(
            method=method,
            sampler=sampler,
            block_size=size,
            max_new_tokens=length,
            temperature=temperature,
            seed=size,
            drafts="fixed",  # separate commits cost passes, however cheap these are
        )
        for sampler, size, length, temperature in zip(
            SAMPLERS, (8, 5, 16, 3), (20, 17, 30, 9), (0.0, 0.8, 0.0, 0.0), strict=True
        )
    ]


def test_it_is_a_language_model_and_no_module(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    model: LanguageModel = naive_model(trained_tokenizer)
    assert not isinstance(model, torch.nn.Module)


@pytest.mark.parametrize("fuses_commit", [False, True], ids=["separate commits", "fused commits"])
@pytest.mark.parametrize("mode", MODES)
def test_blocks_are_the_plain_twins(
    mode: str, fuses_commit: bool, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Token for token; and by as many passes, commits of their own added where there are any."""
    model = naive_model(trained_tokenizer, mode, fuses_commit=fuses_commit)
    for method in ("sbd", "exact"):
        settings = settings_of(method)
        rows = [prompts[n % 3] for n in range(len(settings))]
        for prompt, each, found in zip(rows, settings, answers(model, rows, settings), strict=True):
            twin: Any = {"sampler": each.sampler, "forward": by_hand}
            if method == "sbd":
                token_ids, passes = naive_decode(model, prompt, each, **twin)
            else:
                token_ids, passes = naive_exact(model, prompt, each, **twin)
            assert found.token_ids == token_ids
            if fuses_commit:
                assert found.passes.decoding == passes
            else:
                assert found.passes.block + found.passes.commit >= passes


@pytest.mark.in_turn
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
@pytest.mark.parametrize("mode", MODES)
def test_separate_commits_change_nothing_but_the_passes(
    mode: str, method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """The same tokens, and in blocks with the same entropies in the same order; each commit that was the next block's first
    pass as well is two passes now. After a rejection, exact mode drafts at other places, in at most two passes for one. Every
    pass counts, and every pass is counted."""
    settings = settings_of(method)
    for prompt, each in zip([prompts[n % 3] for n in range(len(settings))], settings, strict=True):
        fused, separate = (naive_model(trained_tokenizer, mode, fuses_commit=fuses) for fuses in (True, False))
        batch, (ours,) = static_batch(fused, [prompt], [each]), answers(separate, [prompt], [each])
        both = 0
        for step in batch.steps():
            goes_on = bool(step.revealed[0].any()) or not bool(batch.state.answer.finished[0])
            both += method == "sbd" and bool(step.is_commit[0]) and goes_on
        theirs = batch.generation(0)
        assert_same(ours, theirs)
        if method == "exact":
            assert theirs.passes.decoding <= ours.passes.decoding <= 2 * theirs.passes.decoding
        else:
            assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-6)
            assert ours.passes.decoding == theirs.passes.decoding + both
        assert ours.passes.total == separate.runners[-1].passes
        assert theirs.passes.total == fused.runners[-1].passes


@pytest.mark.parametrize("mode", MODES)
def test_sbd_models_too_may_commit_in_passes_of_their_own(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode, dtype=torch.float64)
    for method in ("sbd", "exact", "ntp"):
        settings = settings_of(method)
        rows = [prompts[n % 3] for n in range(len(settings))]
        batch = static_batch(sbd, rows, settings)
        batch.runner.fuses_commit = False  # type: ignore[misc]
        for _ in batch.steps():
            pass
        for row, theirs in enumerate(answers(sbd, rows, settings)):
            assert_same(batch.generation(row), theirs)


def test_every_way_to_generate(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    model = naive_model(trained_tokenizer)
    texts = ["one two three", "four", "five six"]
    settings = [replace(each, stop=["zz"], logprobs=1) for each in settings_of("sbd")[:3]]
    together = generate_batch(model, texts, settings=settings)
    for text, each, found in zip(texts, settings, together, strict=True):
        alone = generate(model, text, settings=each)
        assert_same(found, alone)
        *chunks, last = stream(model, text, settings=each)
        assert last.generation is not None
        assert "".join(chunk.text for chunk in [*chunks, last]) == alone.text
        assert last.generation.token_ids == alone.token_ids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        untrained = NaiveModel(trained_tokenizer, None)
        plain = generate(untrained, "one two", settings=DecodingSettings(method="ntp", max_new_tokens=9))
    assert plain.passes.decoding == plain.num_tokens - 1


@pytest.mark.parametrize("fuses_commit", [False, True], ids=["separate commits", "fused commits"])
def test_the_engine_gives_what_generate_gives(
    fuses_commit: bool, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Prompts cut, prefixes shared, pages taken away and given back."""
    model = naive_model(trained_tokenizer, fuses_commit=fuses_commit)
    settings = [each for method in ("sbd", "exact", "ntp") for each in settings_of(method)]
    texts = [[*prompts[n % 3], *prompts[0][: n % 2]] for n in range(len(settings))]
    wanted = [Request(str(n), text, each) for n, (text, each) in enumerate(zip(texts, settings, strict=True))]
    engine, log = (
        Engine(model, EngineLimits(max_num_seqs=4, kv_tokens=96, page_tokens=8, max_num_batched_tokens=24)),
        Log(),
    )
    for request in wanted:
        engine.submit(request)
    log.run(engine)
    figures = engine.figures
    assert figures.preemptions > 0
    assert figures.prefix_hit_tokens > 0
    assert figures.passes == model.runners[0].passes
    for request in wanted:
        generation = log[request.id].generation
        assert generation is not None
        (alone,) = answers(model, [request.prompt], [request.settings])
        assert_same(generation, alone)
        assert (generation.passes.block, generation.passes.commit) == (alone.passes.block, alone.passes.commit)
        assert log[request.id].text == alone.text
