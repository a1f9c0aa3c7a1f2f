"""How much is drafted never changes a text: random decisions in every pass, for each row, against plain decoding."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import assert_same, drawn_settings
from families import MODES, tiny_sbd
from given_costs import GivenCosts, by_token
from setblock.decoding.drafts.control import DraftControl, RowDrafts, _load_of, decided_spans
from setblock.decoding.drafts.gains import COPIED, NUM_KINDS, Chances, DraftChoice, ExpectedDraft, Prospects
from setblock.decoding.drafts.lookup import copied, with_copies
from setblock.decoding.generate import generate_batch, open_batch, stream
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, EngineLimits, Request
from setblock.engine.offline import answered
from setblock.model.protocol.runtime import Span
from setblock.model.sbd_model import SBDModel


@dataclass
class AnyDrafts(DraftControl):
    """Decide at random, or not at all for some passes, and remember which decisions there were."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    seen: list[tuple[int, DraftChoice]] = field(default_factory=list)

    def decide(self, rows: Sequence[Prospects], kind: str, *, others: int, **_: Any) -> list[DraftChoice]:
        """Return any decision that there may be."""
        chosen = [
            DraftChoice(
                self.rng.randint(0, len(row.reached)),
                self.rng.choice([0, 0, 1, 2, row.size, self.rng.randint(0, row.size)]),
            )
            for row in rows
        ]
        chosen = [self._with_branches(row, choice) for row, choice in zip(rows, chosen, strict=True)]
        self.seen += [(len(row.reached), choice) for row, choice in zip(rows, chosen, strict=True)]
        self._here, rests = (kind, _load_of(len(rows) + others)), self._rests_here
        self.resting, rests.refused = self.rng.choice([0, 0, 0, 1, 3]), self.rng.choice([0, 1])
        rests.alike, rests.has_blocks, rests.width = self.rng.choice([0, 64]), True, self.rng.randint(1, 12)
        return chosen

    def _with_branches(self, row: Prospects, choice: DraftChoice) -> DraftChoice:
        count, size = self.rng.randint(0, min(row.branches, choice.drafted)), self.rng.randint(2, max(2, row.size))
        size = min(size, row.size)
        return DraftChoice(
            choice.drafted, min(choice.fed, row.size), *((count, size) if count and size > 1 else (0, 0))
        )


def tiny(tokenizer: PreTrainedTokenizerBase, mode: str, **more: Any) -> tuple[SBDModel, AnyDrafts]:
    sbd = tiny_sbd("llama", tokenizer, mode=mode, **more)
    control = AnyDrafts()
    sbd.draft_control = control
    return sbd, control


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
def test_any_decision_gives_plain_decodings_text_in_a_batch(
    mode: str, seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, control = tiny(trained_tokenizer, mode, dtype=torch.float64)
    control.rng.seed(seed)
    rows = [prompts[row % 3] for row in range(len(SETTINGS))]
    assert_plain(generate_batch(sbd, rows, settings=SETTINGS), sbd, rows, SETTINGS)
    kinds = {(drafted < there, fed > 0) for there, (drafted, fed, *_) in control.seen}
    assert len(kinds) == 4  # cut and not, with a block and without


@pytest.mark.parametrize("seed", range(8))
def test_any_decision_gives_plain_decodings_text_for_any_request(
    seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, control = tiny(trained_tokenizer, list(MODES)[seed % len(MODES)], dtype=torch.float64)
    rng = random.Random(seed)
    control.rng.seed(seed)
    settings = [
        replace(drawn_settings(rng, trained_tokenizer, method="exact"), n=1, drafts="adaptive") for _ in range(6)
    ]
    rows = [prompts[row % 3] for row in range(len(settings))]
    assert_plain(generate_batch(sbd, rows, settings=settings), sbd, rows, settings)


@pytest.mark.parametrize("mode", MODES)
def test_any_decision_gives_plain_decodings_text_in_a_stream(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, _ = tiny(trained_tokenizer, mode, dtype=torch.float64)
    for prompt, each in zip(prompts * 2, SETTINGS, strict=False):
        chunks = list(stream(sbd, prompt, settings=each))
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text
        assert_plain([chunks[-1].generation], sbd, [prompt], [each])


@pytest.mark.parametrize("seed", range(4))
def test_any_decision_gives_plain_decodings_text_in_the_engine(
    seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """With little room, so that requests wait, come, go, and are preempted."""
    sbd, control = tiny(trained_tokenizer, "shifted", dtype=torch.float64)
    control.rng.seed(seed)
    settings = [*SETTINGS, *(replace(each, method="sbd") for each in SETTINGS[:2]), replace(SETTINGS[0], method="ntp")]
    rows = [prompts[row % 3] for row in range(len(settings))]
    engine = Engine(sbd, EngineLimits(max_num_seqs=4, kv_tokens=160, max_num_batched_tokens=24, page_tokens=8))
    requests = [Request(str(row), *pair) for row, pair in enumerate(zip(rows, settings, strict=True))]
    found = dict(answered(engine, requests))
    exact = [row for row, each in enumerate(settings) if each.method == "exact"]
    assert_plain(
        [found[str(row)] for row in exact], sbd, [rows[row] for row in exact], [settings[row] for row in exact]
    )
    for row in (5, 6):
        assert_same(found[str(row)], generate_batch(sbd, [rows[row]], settings=[settings[row]])[0])


class Kinds(Chances):
    """In the place of chances, the kinds themselves."""

    def reached(self, kinds: Sequence[int]) -> list[float]:
        return [float(kind) for kind in kinds]


class Learned(ExpectedDraft):
    """What was learned last; None before."""

    last: list[float] | None = None

    def learn(self, reached: Sequence[float]) -> None:
        self.last = list(reached)
        super().learn(reached)


def test_what_copies_give_is_learned_from_those_that_the_text_has(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any decision, from the match at the token that is certain; and of a pass that looked for none, nothing."""
    sbd, control = tiny(trained_tokenizer, "shifted", dtype=torch.float64)
    few = dict.fromkeys(range(5, 17), 50.0)  # tokens, so that some come again
    settings = [replace(SETTINGS[3], logit_bias=few, max_new_tokens=40, prompt_lookup=lookup) for lookup in (1, 1, 2)]
    found: list[tuple[RowDrafts, int, list[float] | None]] = []

    def observed(row: RowDrafts, span: Span) -> None:
        row.copied = kept = Learned(control._copied, memory=16.0)
        DraftControl.observe(control, row, span)
        found.append((row, span.start, kept.last))

    monkeypatch.setattr(control, "observe", observed)
    batch = open_batch(sbd, prompts, settings)
    for row in batch.drafts:
        assert row is not None
        row.chances = Kinds(memory=1.0)
    batch.run()
    seen = Counter[str]()
    for row, committed, learned in found:
        index = batch.drafts.index(row)
        text = [*prompts[index], *batch.generation(index).token_ids][: committed + 1]
        if learned is None or len(text) <= committed:
            seen["nothing"] += 1
            continue
        matched = int(copied(torch.tensor([text]), torch.tensor([committed]), size=1).matched)
        if matched < (settings[index].prompt_lookup or 0):
            seen["none"] += 1
            assert not any(learned)
        else:
            seen["a copy of one" if matched == 1 else "a longer copy"] += 1
            assert learned == [min(COPIED + matched - 1 + place, NUM_KINDS - 1) for place in range(len(learned))]
    assert min(seen[each] for each in ("nothing", "none", "a copy of one", "a longer copy")) > 0, seen


def test_costs_hear_which_passes_have_a_block(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row's blocks are decided, and another's, of method `sbd`, are not."""
    sbd, control = tiny(trained_tokenizer, "shifted")
    timed: list[bool] = []
    told: list[tuple[bool, bool]] = []
    monkeypatch.setattr(control, "learn", lambda each: timed.append(each.has_block))

    def decide(rows: Sequence[Prospects], kind: str, *, has_block: bool, **more: Any) -> list[DraftChoice]:
        whole = batch.next_spans
        assert whole is not None
        told.append((has_block, whole[1].in_block > 0))
        return AnyDrafts.decide(control, rows, kind, **more)

    monkeypatch.setattr(control, "decide", decide)
    settings = replace(SETTINGS[0], max_new_tokens=60)
    batch = open_batch(sbd, prompts[:2], [settings, replace(settings, method="sbd", max_new_tokens=20)])
    fed = [any(span.in_block or span.branches > 0 for span in batch.spans(batch.runner)) for _ in batch.steps()]
    assert timed[1:] == fed[: len(timed) - 1]  # the first pass is that of the prompts
    assert len(set(timed)) == len(set(told)) == 2
    assert all(has_block == is_fed for has_block, is_fed in told)


def test_rows_that_are_taken_are_decided_for_once(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """An engine that puts a row off takes it with what its next pass is fed, which was decided already."""
    sbd, control = tiny(trained_tokenizer, "shifted")
    batch = open_batch(sbd, prompts[:2], [replace(SETTINGS[0], max_new_tokens=60)] * 2)
    for _ in batch.steps():
        control.resting = 0
        spans, decisions = batch.spans(batch.runner), len(control.seen)
        assert batch.taken([1]).spans(batch.runner) == spans[1:]
        assert len(control.seen) == decisions
    assert control.seen


def test_copies_are_not_looked_for_where_none_is_worth_it(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most passes of a batch cost what they cost in plain decoding, and the others find out whether that has changed."""
    searches = []

    def counted(*of: Any, **more: Any) -> Any:
        searches.append(1)
        return with_copies(*of, **more)

    monkeypatch.setattr("setblock.decoding.step.absorb.with_copies", counted)
    monkeypatch.setattr(DraftControl, "costs_of", lambda *_, **__: GivenCosts(by_token))
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    settings = DecodingSettings(max_new_tokens=60, min_new_tokens=60, prompt_lookup=1)
    answers = generate_batch(sbd, [[5, 6, 5, 6, 5, 6]] * 20, settings=settings)
    assert sum(each.drafted for each in answers) == 0
    assert 10 <= len(searches) <= 20 < answers[0].num_forwards


def test_a_drafted_place_that_was_left_out_is_learned_from_too(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is learned of any cut draft is what the text says of its places: of those that were checked and of the next one."""
    sbd, _ = tiny(trained_tokenizer, "shifted", dtype=torch.float64)
    sbd.end_of_text_ids = ()
    sbd.model.get_output_embeddings().weight.data[5:] = (
        0  # so that it writes few tokens, and copies of them are often right
    )
    fed: dict[
        int, tuple[int, Span, int]
    ] = {}  # by the chances of a row: its number, its whole draft, how much was checked
    learned: list[tuple[int, Span, int, list[int], int]] = []
    learn = Chances.learn

    def decide(
        control: DraftControl, drafts: Sequence[RowDrafts | None], spans: Sequence[Span], *of: Any, **more: Any
    ) -> list[Span]:
        found = decided_spans(control, drafts, spans, *of, **more)
        for row, (known, whole, cut) in enumerate(zip(drafts, spans, found, strict=True)):
            assert known is not None
            fed[id(known.chances)] = row, whole, cut.drafted
        return found

    def noted(self: Chances, kinds: Sequence[int], *, right: int) -> None:
        if id(self) in fed:
            learned.append((*fed[id(self)], list(kinds), right))
        learn(self, kinds, right=right)

    monkeypatch.setattr("setblock.decoding.rows.decided_spans", decide)
    monkeypatch.setattr(Chances, "learn", noted)
    settings = DecodingSettings(max_new_tokens=60, prompt_lookup=1, block_size=8)
    answers = generate_batch(sbd, prompts[:3], settings=settings)
    texts = [[*prompt, *each.token_ids] for prompt, each in zip(prompts, answers, strict=False)]
    more = Counter[bool]()
    for row, whole, drafted, kinds, right in learned:
        places = range(whole.start + 1, whole.start + 1 + len(kinds))
        assert tuple(kinds) == whole.kinds[: len(kinds)]
        if kinds and places.stop <= len(texts[row]):
            is_right = [texts[row][place] == whole.token_ids[place - whole.start] for place in places]
            assert right == [*is_right, False].index(False)
            more[is_right[-1]] += len(kinds) > drafted
    assert min(more[True], more[False]) > 0, more
