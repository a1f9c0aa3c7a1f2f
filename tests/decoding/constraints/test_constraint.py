"""Constraints of rows: the tokens they receive, and what they allow; alone, in batches, in the engine and in vLLM's slots."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from answers import ORDERS, InOrder, Remembering, answers, assert_same
from decoding.samplers.cases import EXAMPLES
from families import MODES, tiny_sbd
from measuring.static_batch import static_batch
from naive import full_logits
from running import Log, check_that_rows_come_and_go_as_alone
from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.engine.engine import Engine
from setblock.engine.generate import generate, stream
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel
from slot_engine import serve

pytestmark = pytest.mark.usefixtures("longest_drafts")

END = 0
SAMPLERS: list[Sampler] = [
    EntropyBounded(0.0),
    EntropyBounded(3.0),
    EntropyBounded(math.inf),
    InOrder(ORDERS["right to left"]),
    InOrder(ORDERS["ends first"]),
    Remembering(),
    EXAMPLES["credit-decoding"](strength=50.0),
]


@dataclass(frozen=True)
class Language:
    """A regular language over token ids: of each state, which ids lead where, by a residue or by name. Ends in state 0 only."""

    edges: tuple[tuple[tuple[Any, int], ...], ...] = (
        ((("mod", 5, 1), 1), (("mod", 5, 2), 2)),
        ((("is", 42), 2),),  # forced
        ((("mod", 3, 0), 3), (("mod", 3, 1), 0)),
        ((("is", 77), 4),),
        ((("is", 78), 0), (("is", 79), 1)),
    )

    def constraint(self, params: RequestParams, *, vocab_size: int) -> "Walker":
        return Walker(self, params.ends, vocab_size)

    def allowed(self, state: int, ends: tuple[int, ...], vocab_size: int) -> Tensor:
        return allowed_in(self, state, ends, vocab_size)

    def after(self, state: int, token_id: int) -> int | None:
        for (kind, *numbers), target in self.edges[state]:
            if (token_id % numbers[0] == numbers[1]) if kind == "mod" else token_id == numbers[0]:
                return target
        return None

    def states(self, token_ids: Sequence[int]) -> list[int]:
        """Those after each beginning of a text; fails if it is not in the language."""
        found = [0]
        for token_id in token_ids:
            state = self.after(found[-1], token_id)
            assert state is not None, f"{token_id} is not allowed after {token_ids[: len(found) - 1]}"
            found.append(state)
        return found


@functools.cache
def allowed_in(language: Language, state: int, ends: tuple[int, ...], vocab_size: int) -> Tensor:
    """Which ids may come in a state: [vocab_size], asked for in each pass of each row."""
    mask = [language.after(state, each) is not None and each not in ends for each in range(vocab_size)]
    for each in ends:
        mask[each] = state == 0
    return torch.tensor(mask)


class Walker(TokenConstraint):
    """Walks through a language; can go back."""

    constrains = True

    def __init__(self, language: Language, ends: Sequence[int], vocab_size: int) -> None:
        self.language, self.ends, self.vocab_size = language, tuple(ends), vocab_size
        self.states = [0]
        self.filled = 0

    def reveal(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            state = self.states[-1] if token_id in self.ends else self.language.after(self.states[-1], token_id)
            assert state is not None
            self.states.append(state)

    def retract(self, count: int) -> None:
        assert 0 < count < len(self.states)
        del self.states[-count:]

    def fill(self, allowed: Tensor) -> None:
        assert allowed.all()
        allowed.copy_(self.language.allowed(self.states[-1], self.ends, self.vocab_size))
        self.filled += 1


class Listener(TokenConstraint):
    """Keeps the tokens that it receives, and fails where that does not fit together."""

    def __init__(self) -> None:
        self.standing: list[int] = []
        self.certain: list[int] = []
        self.retracted, self.is_over = 0, False

    def constraint(self, params: RequestParams, *, vocab_size: int) -> "Listener":
        return self

    def reveal(self, token_ids: Sequence[int]) -> None:
        assert token_ids
        self.standing += token_ids

    def retract(self, count: int) -> None:
        assert 0 < count <= len(self.standing) - len(self.certain)
        del self.standing[-count:]
        self.retracted += count

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        assert not self.is_over
        self.certain += token_ids
        assert self.standing[: len(self.certain)] == self.certain
        self.is_over = final


@dataclass
class Stopper(TokenConstraint):
    """Ends the answer after a number of certain tokens."""

    after: int
    seen: int = field(default=0, compare=False)

    def constraint(self, params: RequestParams, *, vocab_size: int) -> "Stopper":
        return replace(self)

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        self.seen += len(token_ids)
        if self.seen >= self.after:
            self.stop_length = self.after


class LazyStopper(Stopper):
    """Hears when somebody asks for its row."""

    is_lazy = True


def model(tokenizer: PreTrainedTokenizerBase, mode: str = "shifted") -> SBDModel:
    sbd = tiny_sbd("llama", tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = (END,)
    return sbd


def requests(method: Any) -> list[DecodingSettings]:
    """Of all kinds, every third without a language."""
    base = DecodingSettings(method=method, max_new_tokens=19, block_size=6, constraints=(Language(),))
    found = [
        replace(base, sampler=sampler, temperature=temperature, seed=7)
        for sampler, temperature in itertools.product(SAMPLERS, (0.0, 0.9))
    ]
    found[1] = replace(found[1], repetition_penalty=1.5, top_p=0.9)
    found[4] = replace(found[4], banned_tokens=(2, 7, 12, 17), min_p=0.01)
    return [replace(each, constraints=()) if place % 3 == 2 else each for place, each in enumerate(found)]


def naive_ntp(sbd: SBDModel, prompt: list[int], language: Language, *, tokens: int) -> list[int]:
    """Next-token decoding within a language, as plainly as it can be written; greedy."""
    written: list[int] = []
    while len(written) < tokens and END not in written:
        logits = full_logits(sbd, prompt + written, len(prompt) + len(written))[-1]
        mask = language.allowed(language.states(written)[-1], (END,), len(logits))
        written.append(int(logits.masked_fill(~mask, -torch.inf).argmax()))
    return written


@pytest.mark.parametrize("mode", MODES)
def test_exact_is_next_token_decoding_within_the_language(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = model(trained_tokenizer, mode)
    settings = requests("exact")
    rows = [prompts[n % 3] for n in range(len(settings))]
    exact = answers(sbd, rows, settings)
    ntp = answers(sbd, rows, [replace(each, method="ntp") for each in settings])
    for prompt, each, ours, theirs in zip(rows, settings, exact, ntp, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        plain = each.constraints and not (each.temperature or each.banned_tokens or each.repetition_penalty != 1)
        if plain:
            assert theirs.token_ids == naive_ntp(sbd, prompt, Language(), tokens=19)
    # Some drafts were right, and some wrong
    with_language = [each for each, requested in zip(exact, settings, strict=True) if requested.constraints]
    assert any(each.passes.decoding < each.num_tokens for each in with_language)


@pytest.mark.in_turn
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
@pytest.mark.parametrize("mode", MODES)
def test_every_answer_is_in_the_language_and_is_what_it_is_alone(
    mode: str, method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Others beside it, with and without a language, change nothing."""
    sbd = model(trained_tokenizer, mode)
    settings = requests(method)
    rows = [prompts[n % 3] for n in range(len(settings))]
    for prompt, each, found in zip(rows, settings, answers(sbd, rows, settings), strict=True):
        assert found.finish_reason in ("stop", "length")
        if each.constraints:
            written = [token_id for token_id in found.token_ids if token_id != END]
            assert Language().states(written)[-1] == 0 or found.finish_reason == "length"
        (alone,) = answers(sbd, [prompt], [each])
        assert_same(found, alone)
        assert found.passes == alone.passes


def test_what_comes_after_a_gap_is_not_known_and_stays_masked(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Of a sampler that would begin at the right, nothing but the first masked position is taken."""
    sbd = model(trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(
        method="sbd",
        sampler=InOrder(ORDERS["right to left"]),
        block_size=6,
        max_new_tokens=18,
        constraints=(Language(),),
    )
    batch = static_batch(sbd, [prompts[0]], [settings])
    for step in batch.steps():
        places = (step.positions[0][step.revealed[0]]).tolist()
        assert places == list(range(places[0], places[0] + len(places)))
        answer = batch.state.answer_of(0).tolist()
        assert len(Language().states(answer)) == len(answer) + 1
    free = answers(sbd, [prompts[0]], [replace(settings, constraints=())])[0]
    assert free.revealed_by != sorted(free.revealed_by)  # without a language it does begin at the right


def test_what_the_language_forces_costs_no_entropy(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = model(trained_tokenizer)
    sbd.end_of_text_ids = ()
    forced = Language(edges=tuple(((("is", 20 + state), (state + 1) % 9),) for state in range(9)))
    settings = DecodingSettings(sampler=EntropyBounded(0.0), block_size=6, max_new_tokens=25, constraints=(forced,))
    found = generate(sbd, "x", settings=settings, raw=True)
    assert found.token_ids == [20 + n % 9 for n in range(25)]
    assert max(found.entropy) == 0
    assert found.passes.decoding == 4  # a block a pass, the first with the prompt


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_the_engine_gives_what_a_request_gives_alone(
    method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Rows join and leave with their constraints, and lose their cache on the way."""
    sbd = model(trained_tokenizer)
    settings = requests(method)[:9]
    wanted = [Request(str(n), prompts[n % 3], each) for n, each in enumerate(settings)]
    limits = EngineLimits(max_num_seqs=4, kv_tokens=88, page_tokens=8, max_num_batched_tokens=24)
    check_that_rows_come_and_go_as_alone(sbd, wanted, limits)


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_vllms_slots_give_what_generate_gives(
    method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Also after an interruption, when constraints receive committed tokens again."""
    sbd = model(trained_tokenizer)
    settings = requests(method)[:4]
    rows = [prompts[n % 3] for n in range(len(settings))]
    served = serve(sbd, rows, settings, interrupt=frozenset({4, 9}))
    for prompt, each, found in zip(rows, settings, served, strict=True):
        assert found.token_ids == answers(sbd, [prompt], [each])[0].token_ids


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_a_constraint_receives_all_changes_of_its_row(
    method: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = model(trained_tokenizer)
    listeners = [Listener() for _ in SAMPLERS]
    settings = [
        DecodingSettings(
            method=method,
            sampler=sampler,
            block_size=6,
            max_new_tokens=17,
            constraints=(listener,),
        )
        for sampler, listener in zip(SAMPLERS, listeners, strict=True)
    ]
    batch = static_batch(sbd, [prompts[n % 3] for n in range(len(settings))], settings)
    for _ in batch.steps():
        for row, listener in enumerate(listeners):
            certain = [token_id for token_id in batch.state.answer_of(row).tolist() if token_id != END]
            assert listener.certain == certain
    for row, listener in enumerate(listeners):
        assert [each for each in listener.standing if each != END] == listener.certain
        assert [*listener.certain, END][: len(batch.generation(row).token_ids)] == batch.generation(row).token_ids
        assert listener.is_over
    assert (sum(each.retracted for each in listeners) > 0) == (method == "exact")


@pytest.mark.parametrize("stopper", [Stopper, LazyStopper])
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_a_companion_can_end_the_answer(
    method: Any, stopper: type[Stopper], trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """In a stream, in one piece, and in the engine, alone and beside others; whenever it receives tokens."""
    sbd = model(trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method=method, sampler=EntropyBounded(4.0), block_size=6, max_new_tokens=20)
    whole = generate(sbd, prompts[0], settings=settings)
    stopped = replace(settings, constraints=(stopper(8),))
    *chunks, last = stream(sbd, prompts[0], settings=stopped)
    assert last.generation is not None
    assert "".join(chunk.text for chunk in [*chunks, last]) == last.generation.text
    found = [last.generation, generate(sbd, prompts[0], settings=stopped)]
    for others in (0, 2):
        engine, log = Engine(sbd), Log()
        engine.submit(Request("", prompts[0], stopped))
        for number in range(others):
            engine.submit(Request(str(number), prompts[number], settings))
        log.run(engine, most=100)
        assert log[""].generation is not None
        assert log[""].text == log[""].generation.text
        found.append(log[""].generation)
    for each in found:
        assert each.token_ids == whole.token_ids[:8]
        assert each.finish_reason == "stop"
        assert whole.text.startswith(each.text)


def test_where_nothing_may_come_the_row_ends_in_an_error(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = model(trained_tokenizer)
    sbd.end_of_text_ids = ()
    dead_end = Language(edges=(((("mod", 5, 1), 1),), ((("is", 42), 2),), ()))
    for method in ("sbd", "exact", "ntp"):
        base = DecodingSettings(method=method, sampler=EntropyBounded(math.inf), block_size=6, max_new_tokens=9)  # type: ignore[arg-type]
        dead, other = answers(sbd, [prompts[0]] * 2, [replace(base, constraints=(dead_end,)), base])
        assert (dead.finish_reason, other.finish_reason) == ("error", "length")
        assert len(dead.token_ids) == 2
        assert dead.token_ids[1] == 42
