"""Share the next pass among the rows of a batch: from spans that feed all that may be fed to those that pay.

Knows spans and rows' terms. Knows nothing of tensors.
"""

from collections.abc import Sequence
from dataclasses import replace

from setblock.decoding.drafts.control import DraftControl, FedDraft, PassKind, RowDrafts, Standing
from setblock.decoding.drafts.costs import TimedPass
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.plan import Span, fixed_widths
from setblock.model.protocol.feed import PassPlan
from setblock.model.protocol.language_model import Runner

_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


def observe(control: DraftControl, drafts: Sequence[RowDrafts | None], spans: Sequence[Span]) -> None:
    """Learn from where rows stand after a pass."""
    for row, span in zip(drafts, spans, strict=True):
        if row is not None and not span.is_prefill:
            control.observe(row, span.start, span.kinds)


def note_fed(drafts: Sequence[RowDrafts | None], spans: Sequence[Span]) -> None:
    """Remember what a pass is fed of each row."""
    for row, span in zip(drafts, spans, strict=True):
        if row is not None and is_shared(span):
            row.fed = FedDraft(span.start, span.kinds[: span.drafted], span.in_block)


def is_shared(span: Span) -> bool:
    """Return whether a row's next pass checks what it is fed, so that it may be fed less."""
    return bool(span.tokens) and not span.is_prefill and span.start < span.block_start


def pass_kind(runner: Runner) -> str:
    """Return the name of a runner's passes, whose costs are alike."""
    return f"{type(runner).__name__}{'' if runner.fixed_keys is None else ', compiled'}"


def shared_spans(
    control: DraftControl,
    drafts: Sequence[RowDrafts | None],
    spans: Sequence[Span],
    state: BatchState,
    runner: Runner,
) -> list[Span]:
    """Return the spans of the next pass, with as much of each row's draft and block as pays. Does not wait for the device.

    Args:
        drafts: of each row; None where nothing is decided.
        spans: what a full pass feeds.
    """
    deciding = {row for row, span in enumerate(spans) if drafts[row] is not None and is_shared(span)}
    if not deciding:
        return list(spans)
    terms, has_blocks = state.terms.rows, state.facts is not None
    fed = [span for span in spans if span.tokens]
    others = [span for row, span in enumerate(spans) if span.tokens and row not in deciding]
    is_fixed = runner.fixed_keys is not None
    widths: list[int] | None = None
    if is_fixed or (runner.pads and len(fed) > 1):
        least = max([1, *(span.tokens for span in others)])
        most = max(1 + spans[row].drafted + (terms[row].block_size if has_blocks else 0) for row in deciding)
        if is_fixed:
            widths = [each for each in fixed_widths(state.terms) if each >= least] or [least]
        else:
            widths = sorted({least, max(least, most), *(each for each in _WIDTHS if least < each < most)})
    standings = []
    for row in sorted(deciding):
        known = drafts[row]
        assert known is not None
        room = min(terms[row].block_size, terms[row].limit - spans[row].start - 1)
        standings.append(Standing(known, spans[row].kinds, room if has_blocks else 0))
    shares = control.decide(
        standings,
        PassKind(pass_kind(runner), widths, waits=not runner.fuses_commit),
        others=sum(span.tokens for span in others if not span.is_prefill),
        prompts=sum(span.tokens for span in others if span.is_prefill),
        padded_rows=len(spans) if is_fixed else len(fed),
        cached=sum(span.start for span in fed),
    )
    found = list(spans)
    for row, share in zip(sorted(deciding), shares, strict=True):
        found[row] = _shared(spans[row], share.drafted, share.fed, terms[row], fuses_commit=runner.fuses_commit)
    return found


def timed_pass(plan: PassPlan, spans: Sequence[Span], runner: Runner) -> TimedPass:
    """Return a pass whose time is not known yet."""
    fed = [span for span in spans if span.tokens]
    rows, is_padded = len(plan.rows), runner.pads or plan.is_fixed
    return TimedPass(
        kind=pass_kind(runner),
        tokens=rows * plan.queries if is_padded else sum(span.tokens for span in fed),
        rows=rows,
        cached=sum(span.start for span in fed),
        seconds=0.0,
    )


def _shared(span: Span, drafted: int, fed: int, terms: RowTerms, *, fuses_commit: bool) -> Span:
    block_start = span.start + 1 + drafted
    stop = span.stop_end if drafted == span.drafted else terms.limit
    block_end = min(block_start + terms.block_size, stop)
    end = min(block_start + fed, block_end) if fuses_commit else block_start
    return replace(span, end=end, block_start=block_start, stop_end=stop, kinds=span.kinds[:drafted], fed_size=fed)
