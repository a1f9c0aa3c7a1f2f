"""Decide what the next pass feeds each row, and learn from the last one.

Knows spans, rows' terms and runners. Knows nothing of how much pays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from setblock.decoding.drafts.control import DraftControl, RowDrafts
from setblock.decoding.drafts.costs import TimedPass, unevenness
from setblock.decoding.drafts.gains import DraftChoice
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.feed import row_widths
from setblock.model.protocol.runtime import PassPlan, Runner, Span, pass_kind


def note_fed(drafts: Sequence[RowDrafts | None], spans: Sequence[Span], *, looks: bool) -> None:
    """Remember what a pass is fed of each row, and whether it looks for copies."""
    for row, span in zip(drafts, spans, strict=True):
        if row is not None and checks_draft(span):
            row.fed, row.looked = span, looks


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
    as pays. Does not wait for the device.

    Args:
        drafts: of each row; None where nothing is decided.
        spans: what a full pass feeds.
        is_closed: whether nobody takes the place of a row that ends.
    """
    for known, span in zip(drafts, spans, strict=True):
        if known is not None and not span.is_prefill:
            token = span.token_ids[0] if span.tokens and span.token_ids else None
            control.observe(known, span.start, span.kinds, copied=span.copied, token=token)
    deciding = [row for row, span in enumerate(spans) if drafts[row] is not None and checks_draft(span)]
    if not deciding:
        return list(spans)
    found, terms = list(spans), state.terms.rows
    offered = [_offered(spans[row], terms[row], has_blocks=state.facts is not None) for row in deciding]
    if control.resting and runner.fixed_keys is None:
        chosen = control.rest(offered)
    else:
        chosen = _decided(
            control, drafts, spans, dict(zip(deciding, offered, strict=True)), state, runner, is_closed=is_closed
        )
    for row, choice in zip(deciding, chosen, strict=True):
        whole, known = spans[row], drafts[row]
        found[row] = _with_choice(whole, choice, terms[row], fuses_commit=runner.fuses_commit)
        if known is not None:
            is_cut = choice.drafted < whole.drafted
            known.left = (whole.kinds[choice.drafted], whole.token_ids[1 + choice.drafted]) if is_cut else None
    return found


def _decided(
    control: DraftControl,
    drafts: Sequence[RowDrafts | None],
    spans: Sequence[Span],
    offered: Mapping[int, DraftChoice],
    state: BatchState,
    runner: Runner,
    *,
    is_closed: bool,
) -> list[DraftChoice]:
    terms, is_fixed = state.terms.rows, runner.fixed_keys is not None
    fed = [span for span in spans if span.tokens]
    others = [span for row, span in enumerate(spans) if span.tokens and row not in offered]
    widths: list[int] | None = None
    if is_fixed or (runner.pads and len(fed) > 1):
        least = max([1, *(span.tokens for span in others)])
        most = max(
            1 + offer.drafted + (terms[row].block_size if state.facts is not None else 0)
            for row, offer in offered.items()
        )
        widths = row_widths(least, most, state.terms, is_fixed=is_fixed)
    prospects = []
    for row, offer in offered.items():
        known = drafts[row]
        assert known is not None
        prospects.append(
            known.prospects(
                spans[row].kinds,
                offer.fed,
                waits=not runner.fuses_commit,
                branches=min(terms[row].branches, runner.branched // terms[row].block_size),
                remaining=_remaining(spans[row], terms[row]) if is_closed else 0,
            )
        )
    return control.decide(
        prospects,
        pass_kind(runner),
        others=sum(span.tokens for span in others if not span.is_prefill),
        prompts=sum(span.tokens for span in others if span.is_prefill),
        cached=sum(span.start for span in fed),
        padded_rows=len(spans) if is_fixed else len(fed),
        widths=widths,
        has_block=any(span.in_block for span in others),
    )


def timed_pass(plan: PassPlan, spans: Sequence[Span], runner: Runner) -> TimedPass:
    """Return a pass whose time is not known yet."""
    fed = [span for span in spans if span.tokens]
    rows, is_padded, width = len(plan.rows), runner.pads or plan.is_fixed, plan.queries + plan.branched
    return TimedPass(
        kind=pass_kind(runner),
        tokens=rows * width if is_padded else sum(span.tokens for span in fed),
        rows=rows,
        cached=sum(span.start for span in fed),
        uneven=0 if is_padded else unevenness(span.tokens - 1 for span in fed if not span.is_prefill),
        has_block=plan.branches > 0 or any(span.in_block for span in fed),
        seconds=0.0,
        prompts=sum(width if is_padded else span.tokens for span in fed if span.is_prefill),
    )


def _offered(span: Span, terms: RowTerms, *, has_blocks: bool) -> DraftChoice:
    size = min(terms.block_size, _remaining(span, terms))
    return DraftChoice(span.drafted, size if has_blocks and size > 1 else 0)  # one token drafts nothing


def _remaining(span: Span, terms: RowTerms) -> int:
    return terms.limit - span.start - 1


def _with_choice(span: Span, choice: DraftChoice, terms: RowTerms, *, fuses_commit: bool) -> Span:
    drafted, fed = choice.drafted, choice.fed
    block_start = span.start + 1 + drafted
    stop = span.stop_end if drafted == span.drafted else terms.limit
    block_end = min(block_start + terms.block_size, stop)
    end = min(block_start + fed, block_end) if fuses_commit else block_start
    return replace(
        span,
        end=end,
        block_start=block_start,
        stop_end=stop,
        kinds=span.kinds[:drafted],
        token_ids=span.token_ids[: 1 + drafted],
        fed_size=fed,
        branches=choice.branches,
        branch_size=choice.branch_size,
    )
