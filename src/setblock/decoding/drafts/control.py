"""Decide how much each row of a model drafts, pass by pass, and learn from what became of it.

Knows rows by numbers and spans. Knows nothing of tensors, nor of how a pass is run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from setblock.decoding.drafts.alike import choose_drafts_alike
from setblock.decoding.drafts.costs import KNOTS, Gained, LearnedCosts, PassClock, Rests, TimedPass, unevenness
from setblock.decoding.drafts.gains import (
    COPIED,
    Chances,
    DraftChoice,
    ExpectedDraft,
    Prospects,
    Usual,
    choose_drafts,
    kinds_of_copy,
    row_worths,
)
from setblock.decoding.state.state import BatchState, RowTerms
from setblock.decoding.step.feed import row_widths
from setblock.model.protocol.runtime import Runner, Span, pass_kind


@dataclass(eq=False)
class RowDrafts:
    """Hold what is known of one row's drafts."""

    chances: Chances
    expected: ExpectedDraft
    copied: ExpectedDraft  # what copies alone give. They need no block, so it brings only what is better
    size: int = 0  # the most tokens of a future block that it may be fed; 0 where none
    fed: Span | None = None  # what its last pass was fed, until it is known what became of it; None then
    # The kind and the token of the first drafted place that this pass leaves unchecked, if there is one. Whether it was right
    # is known afterwards, at no cost
    left: tuple[int, int] | None = None
    looked: bool = True  # whether that pass looked for copies
    pace: float = 1.0  # how many tokens recent passes gave, on average

    def prospects(
        self, kinds: Sequence[int], size: int, *, waits: bool, branches: int = 0, remaining: int = 0
    ) -> Prospects:
        """Return what the row may gain. `kinds`: of its drafted tokens, those behind the next one, which is certain. `size`: as
        the attribute. `remaining`: tokens that it may have yet, where nobody takes its place then. The others: as in
        `Prospects`."""
        self.size = size
        places = max(0, size - 1)
        pairs = zip(self.expected.of(places), self.copied.of(places), strict=True)
        better = [max(_BETTER * each, each - copied) for each, copied in pairs]
        reached = self.chances.reached(kinds)
        saved = remaining - remaining / max(self.pace, 1.0 + sum(reached), 1.0 + sum(better))
        return Prospects(reached, better, self.size, waits, branches, remaining / self.pace, saved)


# Times as many tokens as plain passes would bring for its cost is what a draft must bring, at least: estimates err, and not all
# that it costs is timed. Where passes have gained more, a draft must bring as much as they have, unless none does. A model says
# how sure it is of its drafts, and copies don't
_MARGIN, _MARGIN_OF_COPIES = 1.15, 1.25
_FREE_ON_CPU, _FREE_ON_GPU = 48.0, 512.0  # tokens; where a prior is wrong, a few passes correct it
_BETTER = 0.01  # of a block's draft is better than a copy, at least: so it is fed where that costs nothing
_RECENT = 12.0  # passes that count for a row's pace
_PLAIN = 32  # plain passes whose gain counts a priori
_ROW_DRAFTS, _MODEL_DRAFTS = 16.0, 256.0  # that count for what a row's drafts are like, and those of a model
_NOTHING = DraftChoice(0, 0)
_KEPT = 0.998  # of what is known of a model's drafts, after one more pass


@dataclass
class DraftControl:
    """Decide for all requests to one model, which learn from each other."""

    free_tokens: float = _FREE_ON_CPU  # as in `LearnedCosts`
    resting: int = 0  # how many passes follow without a decision
    # Whether this pass takes nothing without a decision, so that nothing is to be learned from it
    is_quiet: bool = False
    clock: PassClock = field(default_factory=PassClock)  # what times passes
    _chances: Chances = field(default_factory=lambda: Chances(memory=500.0))
    _expected: ExpectedDraft = field(default_factory=lambda: ExpectedDraft(memory=_MODEL_DRAFTS))
    _copied: ExpectedDraft = field(default_factory=lambda: ExpectedDraft(memory=_MODEL_DRAFTS, usual=0.0))
    # Apart for about as many rows: what few rows cost and gain says little of many
    _learned: dict[tuple[str, int], LearnedCosts] = field(default_factory=dict)
    _gains: dict[tuple[str, int], Gained] = field(default_factory=dict)
    _rests: dict[tuple[str, int], Rests] = field(default_factory=dict)
    _here: tuple[str, int] = "", 1  # the kind of pass and the load of the last decision

    def new_row(self) -> RowDrafts:
        """Return what is known of a row that begins."""
        return RowDrafts(
            Chances(self._chances, memory=24.0),
            ExpectedDraft(self._expected, memory=_ROW_DRAFTS),
            ExpectedDraft(self._copied, memory=_ROW_DRAFTS),
        )

    def costs_of(self, name: str, *, rows: int) -> LearnedCosts:
        """Return the costs of a kind of pass over about as many rows. They begin with those of the most similar passes."""
        key = name, _load_of(rows)
        if key not in self._learned:
            known = [each for each, costs in self._learned.items() if costs.num_passes]
            nearest = min(known, key=lambda each: (each[0] != name, abs(each[1] - key[1])), default=key)
            self._learned[key] = LearnedCosts(free_tokens=self.free_tokens, like=self._learned.get(nearest))
        return self._learned[key]

    def curve(self, runner: Runner, *, rows: int, cached: int) -> tuple[tuple[int, float], ...]:
        """Return what passes over 1, 2, 4, ... tokens cost, in seconds, as far as it is known."""
        model = self._learned.get((pass_kind(runner), _load_of(rows)))
        if model is None or not model.num_passes:
            return ()
        computed = [runner.computed(each) for each in KNOTS]
        return tuple(zip(KNOTS, model.seconds(computed, rows=max(1, rows), cached=cached), strict=True))

    @property
    def _gain_here(self) -> Gained:
        some = float(_PLAIN << self._here[1])
        return self._gains.setdefault(self._here, Gained(gained=some, spent=some, drafts=some, drafts_gained=some))

    @property
    def _rests_here(self) -> Rests:
        return self._rests.setdefault(self._here, Rests())

    def observe(self, row: RowDrafts, span: Span) -> None:
        """Learn what became of the draft that a row's last pass was fed, and what would have of one more place. `span`: what a
        full next pass feeds the row."""
        fed, row.fed = row.fed, None
        if fed is None or span.start <= fed.start:
            return
        gained, copied = span.start - fed.start, span.copied
        checked = fed.kinds[: fed.drafted]
        right = min(len(checked), gained - 1)
        drafted = (fed.in_block if right == len(checked) else fed.branch_size if right < fed.branches else 0) - 1
        gain = self._gain_here
        gain.gained += gained
        if checked or row.left is not None:  # else there was no draft
            gain.drafts += 1
            gain.drafts_gained += gained
            gain.checked += len(checked)
        row.pace += (gained - row.pace) / _RECENT
        gain.right += right
        gain.hoped += sum(row.chances.reached(checked))
        if row.left is not None and span.tokens and span.token_ids and right == len(checked):
            row.chances.learn([*checked, row.left[0]], right=right + (row.left[1] == span.token_ids[0]))
        else:
            row.chances.learn(checked, right=right)
        # Else there are no copies, as is known
        if row.size and row.looked and (copied >= COPIED or not self._copied.is_new):
            row.copied.learn(row.chances.reached(kinds_of_copy(copied, row.size - 1)) or [0.0] * (row.size - 1))
        if drafted > 0:  # else its draft is void, or there is none
            reached = row.chances.reached(span.kinds[:drafted])  # copies may stand behind what the block gave
            row.expected.learn([*reached, *[0.0] * (drafted - len(reached))])

    def learn(self, timed: TimedPass) -> None:
        """Take the time of a pass into account."""
        self.costs_of(timed.kind, rows=timed.rows).learn(timed)

    def decide(
        self,
        rows: Sequence[Prospects],
        kind: str,
        *,
        others: int,
        prompts: int,
        cached: int,
        padded_rows: int,
        widths: Sequence[int] | None = None,
        has_block: bool = False,
        computed: Callable[[int], int] = int,
    ) -> list[DraftChoice]:
        """Return what each of the rows is to be fed in the next pass besides its next token.

        Args:
            kind: the name of passes whose costs are alike.
            others: tokens of other rows in the pass, those of prompts left out.
            prompts: tokens of prompts in the pass.
            cached: positions that the cache holds of all rows in the pass.
            padded_rows: rows that the pass computes, where it has padding.
            widths: the numbers of tokens for each row that it may have then, padding included; None where it has no padding.
            has_block: whether other rows are fed a future block.
            computed: returns how many tokens a pass computes that is fed so many.
        """
        count, self.is_quiet = len(rows) + others, False
        self._here = kind, _load_of(count)
        here = self._gain_here
        offered = [DraftChoice(len(each.reached), each.size) for each in rows]
        chosen, here.last = offered, 1.0
        if any(each.tokens for each in offered):
            in_pass = count if widths is None else padded_rows
            model = self.costs_of(kind, rows=in_pass)

            def seconds(tokens: Sequence[int]) -> list[float]:
                return model.seconds([computed(each) for each in tokens], rows=in_pass, cached=cached)

            plain, (uneven, block) = seconds([in_pass])[0], model.extras()
            block = 0.0 if has_block else block
            one_row = self._learned.get((kind, 0))  # passes of many rows say little of one
            one_row = one_row if one_row and one_row.num_passes else model
            alone = one_row.seconds([computed(1)], rows=1, cached=cached // in_pass)[0]
            own = max(0.0, plain - alone) / max(1, in_pass - 1)
            saved = sum(row.saved for row in rows) / len(rows)
            fixed = max(0.0, plain - in_pass * own)
            worths = row_worths([row.passes for row in rows], saved=saved, fixed=fixed, own=own)
            prospects = [row.trusted(here.trust, worth) for row, worth in zip(rows, worths, strict=True)]
            usual = Usual(max(1.0, here.drafts_gained / here.drafts), here.checked / here.drafts)
            margin = _MARGIN if any(row.size for row in rows) else _MARGIN_OF_COPIES

            def chosen_at(asked: float) -> list[DraftChoice]:
                rate = asked * count / plain
                if widths is None:
                    return choose_drafts(
                        prospects, seconds, uneven=uneven, block=block, others=count + prompts, rate=rate, usual=usual
                    )
                return choose_drafts_alike(
                    prospects, seconds, block=block, widths=widths, padded_rows=padded_rows, rate=rate, usual=usual
                )

            # A pass that takes nothing gains nothing, and offers the next one little else. So where nothing brings as much as
            # recent passes, less is asked for
            for asked in sorted({margin, max(margin, here.gained / here.spent)}, reverse=True):
                chosen = chosen_at(asked)
                if any(each.tokens for each in chosen):
                    break
            more = [each.tokens for each in chosen]
            if widths is None:
                taken = seconds([count + sum(more)])[0] + uneven * unevenness(more)
            else:
                taken = seconds([padded_rows * (1 + max(more))])[0]
            here.last = (taken + block * any(each.fed or each.branches for each in chosen)) / plain
        is_trial = (
            self._expected.is_unsure and any(each.fed for each in offered) and not any(each.fed for each in chosen)
        )
        if is_trial:
            chosen, here.last = _trial(chosen, offered, is_padded=widths is not None), 1.0
        self._chances.fade(_KEPT)
        self._expected.fade(_KEPT)
        self._copied.fade(_KEPT)
        here.fade()
        self._count(chosen)
        # What a trial costs is not counted, and nothing rests on it: it says nothing of what pays
        self.resting = 0 if is_trial else self._rests_here.noted(chosen, offered, is_padded=widths is not None)
        return chosen

    def rests(self, kind: str, *, rows: int) -> bool:
        """Return whether nothing is decided for the next pass. What was decided for passes of another kind, or over many more
        or fewer rows, says nothing of it."""
        if self._here != (kind, _load_of(rows)):
            self.resting = 0
        return self.resting > 0

    @property
    def looks(self) -> bool:
        """Return whether the next pass may take a draft."""
        return not (self.resting and self._rests_here.refused)

    def rest(self, rows: Sequence[RowDrafts], offered: Sequence[DraftChoice]) -> list[DraftChoice]:
        """Return what rows are fed besides their next tokens in a pass that nothing is decided for. It is as much of what is
        `offered` as in the passes before it. If these took nothing, it is nothing: each row then gets one token, and nothing
        else is to be learned from the pass."""
        self.is_quiet = not self.looks
        self.resting -= 1
        if self.is_quiet:
            chosen = [_NOTHING] * len(rows)
            self._gain_here.gained += len(rows)
            for row in rows:
                row.pace += (1.0 - row.pace) / _RECENT
        else:
            chosen = self._rests_here.repeated(offered)
        self._count(chosen)
        return chosen

    def _count(self, chosen: Sequence[DraftChoice]) -> None:
        here = self._gain_here
        here.spent += len(chosen) * here.last
        if not any(each.tokens for each in chosen):
            here.forget()


def _trial(chosen: Sequence[DraftChoice], offered: Sequence[DraftChoice], *, is_padded: bool) -> list[DraftChoice]:
    """Return what rows are fed where the first that may be fed a block is fed a whole one, and checks nothing, so that the next
    pass shows its draft. A model of which little is known may draft better than is usual: this is tried, whatever it costs.
    Where passes have padding, all rows are, as this costs no more."""
    first = next(row for row, each in enumerate(offered) if each.fed)
    return [
        DraftChoice(0, offer.fed) if offer.fed and (is_padded or row == first) else choice
        for row, (choice, offer) in enumerate(zip(chosen, offered, strict=True))
    ]


def _load_of(rows: int) -> int:
    """Return the same number for 1 row, for 2, for 3 and 4, for 5 to 8, and so on."""
    return max(0, rows - 1).bit_length()


def control_of(model: Any) -> DraftControl:
    """Return what is known of a `LanguageModel`'s drafts; nothing at first."""
    if getattr(model, "draft_control", None) is None:
        model.draft_control = DraftControl(free_tokens=_FREE_ON_CPU if model.device.type == "cpu" else _FREE_ON_GPU)
    control: DraftControl = model.draft_control
    return control


def checks_draft(span: Span) -> bool:
    """Return whether a row's next pass checks what it is fed, so that it may be fed less."""
    return bool(span.tokens) and not span.is_prefill and span.start < span.block_start


def decided_spans(
    control: DraftControl,
    drafts: Sequence[RowDrafts | None],
    spans: Sequence[Span],
    state: BatchState,
    runner: Runner,
    *,
    is_closed: bool,
) -> list[Span]:
    """Learn from where rows stand after a pass. Return the spans of the next one, with as much of each row's draft and block
    as pays. Does not wait for the device. `drafts`: of each row; None where nothing is decided. `spans`: what a full pass
    feeds. `is_closed`: whether nobody takes the place of a row that ends."""
    for known, span in zip(drafts, spans, strict=True):
        if known is not None and known.fed is not None and not span.is_prefill:
            control.observe(known, span)
    pairs = enumerate(zip(drafts, spans, strict=True))
    deciding = {row: known for row, (known, span) in pairs if known is not None and checks_draft(span)}
    if not deciding:
        return list(spans)
    found, terms, has_blocks = list(spans), state.terms.rows, state.terms.facts is not None
    others = [span for row, span in enumerate(spans) if span.tokens and row not in deciding]
    kind, of_others = pass_kind(runner), sum(span.tokens for span in others if not span.is_prefill)
    is_fixed = runner.fixed_keys is not None
    rests = not is_fixed and control.rests(kind, rows=len(deciding) + of_others)
    is_quiet = rests and not control.looks  # then nobody asks what is offered
    offered = [] if is_quiet else [_offered(spans[row], terms[row], has_blocks=has_blocks) for row in deciding]
    if rests:
        chosen = control.rest(list(deciding.values()), offered)
    else:
        fed = [span for span in spans if span.tokens]
        widths: list[int] | None = None
        if is_fixed or (runner.pads and len(fed) > 1):
            least = max([1, *(span.tokens for span in others)])
            most = 1 + max(offer.tokens for offer in offered)
            widths = row_widths(least, most, state.terms, is_fixed=is_fixed)
        prospects = [
            known.prospects(
                spans[row].kinds,
                offer.fed,
                waits=not runner.fuses_commit,
                branches=min(terms[row].branches, runner.branched // terms[row].block_size),
                remaining=_remaining(spans[row], terms[row]) if is_closed else 0,
            )
            for (row, known), offer in zip(deciding.items(), offered, strict=True)
        ]
        chosen = control.decide(
            prospects,
            kind,
            others=of_others,
            prompts=sum(span.tokens for span in others if span.is_prefill),
            cached=sum(span.start for span in fed),
            padded_rows=len(spans) if is_fixed else len(fed),
            widths=widths,
            has_block=any(span.in_block for span in others),
            computed=runner.computed,
        )
    for (row, known), choice in zip(deciding.items(), chosen, strict=True):
        whole, known.left = spans[row], None
        if choice.tokens == 0 and whole.tokens == 1 and runner.fuses_commit:
            continue  # nothing is there to be cut
        found[row] = _with_choice(whole, choice, terms[row], fuses_commit=runner.fuses_commit)
        if choice.drafted < len(whole.kinds):
            known.left = whole.kinds[choice.drafted], whole.token_ids[1 + choice.drafted]
    return found


def _offered(span: Span, terms: RowTerms, *, has_blocks: bool) -> DraftChoice:
    size = min(terms.block_size, _remaining(span, terms))
    return DraftChoice(span.drafted, size if has_blocks and size > 1 else 0)  # one token drafts nothing


def _remaining(span: Span, terms: RowTerms) -> int:
    return terms.limit - span.start - 1


def _with_choice(span: Span, choice: DraftChoice, terms: RowTerms, *, fuses_commit: bool) -> Span:
    drafted = choice.drafted
    block_start = span.start + 1 + drafted
    stop = span.stop_end if drafted == span.drafted else terms.limit
    return span._replace(
        end=min(block_start + choice.fed, stop) if fuses_commit else block_start,
        block_start=block_start,
        stop_end=stop,
        kinds=span.kinds[:drafted],
        token_ids=span.token_ids[: 1 + drafted],
        fed_size=choice.fed,
        branches=choice.branches,
        branch_size=choice.branch_size,
    )
