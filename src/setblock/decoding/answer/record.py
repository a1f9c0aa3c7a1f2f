"""Record a decoding: how many passes each row took, which pass revealed each token, and how likely the token was.

Knows steps. Knows nothing of models or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.decoding.state.joining import fitted, stacked
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.absorb import DecodingStep
from setblock.decoding.step.logits import Logits


@dataclass(frozen=True)
class PassCounts:
    """Count the forward passes of one request, up to the end of its answer.

    Attributes:
        prefill: passes over the prompt.
        block: passes over a block alone (over one token, in method `ntp`).
        commit: passes that committed a block and, unless the runner commits in separate passes, were the first pass of the
            next one.
    """

    prefill: int
    block: int
    commit: int

    @property
    def total(self) -> int:
        """Return the count of all passes of the model."""
        return self.prefill + self.block + self.commit

    @property
    def decoding(self) -> int:
        """Return the count without the prefill, as NFE speed-ups are counted, for both methods."""
        return self.block + self.commit


@dataclass(frozen=True)
class TokenLogprobs:
    """Hold how likely a token was when it was revealed (in method `exact`, when it was checked).

    Attributes:
        logprob: its log-probability, in nats: the model's own, before temperature, penalties and bans.
        alternatives: the most likely token ids with theirs, the most likely first.
    """

    logprob: float
    alternatives: list[tuple[int, float]]


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
