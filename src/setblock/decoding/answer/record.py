"""Record a decoding: how many passes each row took, which pass revealed each token, and how likely the token was. And bring to
the host what it learns of a pass: one copy for the text, the events and the plan of the next pass.

Knows states and steps. Knows nothing of models or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.decoding.answer.generation import PassCounts, PassEvent, Reveal, TokenLogprobs
from setblock.decoding.state.joining import fitted, stacked
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.absorb import DecodingStep
from setblock.decoding.step.feed import Span, span_of, standing
from setblock.decoding.step.logits import Logits
from setblock.devices import HostCopy


@dataclass
class Record:
    """Add up the steps of a batch. B rows, C positions, n alternatives of each token.

    Attributes:
        commits: [B] bool, rows whose passes may commit a block; those of `ntp` commit tokens, which is not counted.
        prefill, commit: [B] int64, passes of these kinds so far.
        drafted, accepted: [B] int64, drafted tokens that were checked so far, and those of them that were right.
        number: [B] int64, the number of each row's last pass: 0 is the prefill.
        revealing: [B, C] int64, the pass that revealed each position, 0 for the prefill.
        entropies: [B, C] float32, nats, of each position when it was revealed.
        logprob: [B, C] float32, and top_logprobs, top_ids [B, C, n], where log-probabilities are kept.
        num_alternatives: n, or None where none are kept.
    """

    commits: Tensor
    prefill: Tensor
    number: Tensor
    commit: Tensor
    drafted: Tensor
    accepted: Tensor
    revealing: Tensor
    entropies: Tensor
    logprob: Tensor
    top_logprobs: Tensor
    top_ids: Tensor
    num_alternatives: int | None

    def add(self, step: DecodingStep) -> None:
        """Count one step."""
        read = step.reading
        if read.plan.is_prefill is not None:
            self.prefill += read.is_prefill
            self.number += read.took_part & ~read.is_prefill
        else:
            self.number += read.took_part
        self.commit += read.committed
        at, commit, check = step.at, read.given.commit, read.check
        if commit is not None and check is not None:
            drafted = check.known.sum(dim=1)
            self.drafted += drafted
            self.accepted += torch.minimum(drafted, check.first_wrong[:, 0])
            if self.num_alternatives is not None:
                self._keep(commit, check.accepted | check.replaced, check.token_ids)
            # Each column is there once, but for the last, which nobody reads
            nowhere = self.revealing.shape[1] - 1
            at = torch.cat([at, commit.positions.where(check.replaced, nowhere)], dim=1)
        self.revealing.scatter_(1, at, self.number[:, None].expand_as(at))
        self.entropies.scatter_(1, at, step.entropy)
        if self.num_alternatives is not None:
            block = read.given.block
            self._keep(block, step.revealed[:, : block.known.shape[1]], step.token_ids)

    @classmethod
    def joined(cls, records: Sequence["Record"], *, capacity: int) -> "Record":
        """Return the rows of several records in one, of `capacity` positions each."""
        kept = [record.num_alternatives for record in records if record.num_alternatives is not None]
        width = max(kept, default=0)

        def column(name: str) -> Tensor:
            parts: list[Tensor] = [getattr(record, name) for record in records]
            if parts[0].dim() == 3:
                parts = [pad(part, (0, width - part.shape[2])) for part in parts]
            whole = stacked(parts)
            return fitted(whole, capacity) if name in _OF_POSITIONS else whole

        columns = {name: column(name) for name in (*_OF_ROWS, *_OF_POSITIONS)}
        return cls(**columns, num_alternatives=max(kept, default=None))

    def taken(self, rows: Tensor, *, capacity: int) -> "Record":
        """Return the record of `rows` [n] only, for positions below `capacity`."""
        parts = {name: getattr(self, name)[rows] for name in (*_OF_ROWS, *_OF_POSITIONS)}
        cut = {name: parts[name][:, :capacity] for name in _OF_POSITIONS}
        return Record(**parts | cut, num_alternatives=self.num_alternatives)

    def counts(self, row: int) -> PassCounts:
        """Return the passes of one row."""
        counts = (self.prefill[row], self.number[row], self.commit[row] * self.commits[row])
        prefill, number, commit = torch.stack(counts).tolist()
        return PassCounts(prefill=prefill, block=number - commit, commit=commit)

    def revealed_by(self, row: int, start: int, length: int) -> list[int]:
        """Return the pass that revealed each of `length` tokens from position `start` on; 0 is the prefill."""
        found: list[int] = self.revealing[row, start : start + length].tolist()
        return found

    def entropy(self, row: int, start: int, length: int) -> Tensor:
        """Return [length] float32, nats: the entropy at each of those tokens when it was revealed."""
        return self.entropies[row, start : start + length]

    def logprobs(self, row: int, start: int, length: int, *, alternatives: int) -> list[TokenLogprobs]:
        """Return how likely each of those tokens was."""
        here = (row, slice(start, start + length))
        chosen = self.logprob[here].tolist()
        ids, values = (each[here][:, :alternatives].tolist() for each in (self.top_ids, self.top_logprobs))
        return [
            TokenLogprobs(logprob, list(zip(*top, strict=True)))
            for logprob, *top in zip(chosen, ids, values, strict=True)
        ]

    def _keep(self, logits: Logits, where: Tensor, token_ids: Tensor) -> None:
        """Keep the log-probabilities of `token_ids` [B, m] where `where` [B, m] bool says so."""
        rows, columns = (where & logits.known).nonzero(as_tuple=True)  # what a grammar forces may have no logits
        positions = logits.positions[rows, columns]
        log_probs = logits.logits[rows, columns].log_softmax(dim=-1)  # [N, V]
        self.logprob[rows, positions] = log_probs.gather(1, token_ids[rows, columns, None])[:, 0]
        if self.num_alternatives:
            top = log_probs.topk(self.num_alternatives, dim=-1)
            self.top_logprobs[rows, positions], self.top_ids[rows, positions] = top.values, top.indices


_OF_ROWS = ("commits", "prefill", "number", "commit", "drafted", "accepted")
_OF_POSITIONS = ("revealing", "entropies", "logprob", "top_logprobs", "top_ids")


def open_record(state: BatchState, *, num_alternatives: int | None) -> Record:
    """Return the record of a batch before its first step.

    Args:
        num_alternatives: how many alternatives of each token to keep; None to keep no log-probabilities.
    """
    none, nowhere = torch.zeros_like(state.terms.prompt_length), torch.zeros_like(state.tokens)
    alternatives = nowhere[..., None].expand(-1, -1, num_alternatives or 0)
    return Record(
        commits=~state.terms.is_ntp,
        prefill=none,
        number=none.clone(),
        commit=none.clone(),
        drafted=none.clone(),
        accepted=none.clone(),
        revealing=nowhere - 1,
        entropies=nowhere.float(),
        logprob=nowhere.float(),
        top_logprobs=alternatives.float(),
        top_ids=alternatives.clone(),
        num_alternatives=num_alternatives,
    )


@dataclass(frozen=True)
class RowNews:
    """Hold what a pass did to one row.

    Attributes:
        event: what the pass did, or None where the row took no part.
        span: what the next pass feeds it, from what the cache holds exactly on.
        prefilled: as in `Cached`.
        finished, failed, text_end: as in `Answer`.
        answer_end: where the answer ends now.
        tokens: its tokens from position `tokens_start` on, as far as they may have changed.
        tokens_start: where the answer ended before the pass.
    """

    event: PassEvent | None
    span: Span
    prefilled: bool
    finished: bool
    failed: bool
    text_end: int
    answer_end: int
    tokens: Sequence[int]
    tokens_start: int

    def tokens_between(self, start: int, end: int) -> list[int] | None:
        """Return the row's tokens from `start` to `end`, or None where they are not among those that were read."""
        first, last = start - self.tokens_start, end - self.tokens_start
        return list(self.tokens[first:last]) if first >= 0 and last <= len(self.tokens) else None


def read_news(
    state: BatchState, step: DecodingStep, record: Record, *, fuses_commit: bool, since: Tensor
) -> list[RowNews]:
    """Return the news of all rows after a step. Waits for the device, once.

    Args:
        fuses_commit: as in `BatchState.next_end`.
        since: [B] int64, where answers ended before the step.
    """
    read = step.reading
    width = 2 * state.terms.block_width  # of a draft that was checked and the block behind it
    window = (since[:, None] + state.columns[:width]).clamp(max=state.tokens.shape[1] - 1)
    cache, answer = state.cache, state.answer
    scalars = (
        *(cache.prefilled, answer.finished, answer.failed, answer.text_end, answer.end, since, record.number),
        *(read.took_part, read.is_prefill, read.committed & record.commits, state.terms.prompt_length),
    )
    parts = [
        standing(state, fuses_commit=fuses_commit),
        torch.stack(scalars, dim=1),
        state.tokens.gather(1, window),
        *(step.positions, step.revealed, step.token_ids, step.entropy[:, : state.terms.block_width].double()),
    ]
    commit, check = read.given.commit, read.check
    if commit is not None and check is not None:
        entropy = step.entropy[:, state.terms.block_width :].double()
        parts += (commit.positions, check.replaced, check.token_ids, entropy)
    widths = [part.shape[1] for part in parts]
    rows = HostCopy(torch.cat(parts, dim=1)).read()  # float64 holds each of these numbers as it is
    ends = list(accumulate(widths))
    return [_row_news([row[end - width : end] for width, end in zip(widths, ends, strict=True)]) for row in rows]


def _row_news(parts: list[list[float]]) -> RowNews:
    stands, scalars, tokens, *revealing = parts
    prefilled, finished, failed, text_end, answer_end, since, number, took_part, is_prefill, commits, start = map(
        int, scalars
    )
    revealed = _reveals(revealing[:4], start)
    corrected = _reveals(revealing[4:], start) if len(revealing) > 4 else []
    event = PassEvent(
        number=number,
        kind="prefill" if is_prefill else "commit" if commits else "block",
        revealed=revealed,
        corrected=corrected[0] if corrected else None,
    )
    return RowNews(
        event=event if took_part else None,
        span=span_of([int(each) for each in stands]),
        prefilled=bool(prefilled),
        finished=bool(finished),
        failed=bool(failed),
        text_end=text_end,
        answer_end=answer_end,
        tokens=[int(each) for each in tokens],
        tokens_start=since,
    )


def _reveals(columns: list[list[float]], start: int) -> list[Reveal]:
    return [
        Reveal(int(position) - start, int(token_id), entropy)
        for position, where, token_id, entropy in zip(*columns, strict=True)
        if where
    ]
