"""The record of a decoding: how many passes each row took, which pass revealed which token, and how likely it was.

Knows steps. Knows nothing of models or text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.loop import DecodingStep
from setblock.decoding.passes import Logits
from setblock.decoding.state import BatchState


@dataclass(frozen=True)
class PassCounts:
    """Forward passes of one request, up to the end of its answer.

    Attributes:
        prefill: passes over the prompt.
        block: passes over a block alone (over one token, in method `ntp`).
        commit: passes that committed a block and were the first pass of the next one.
    """

    prefill: int
    block: int
    commit: int

    @property
    def total(self) -> int:
        """All of them: every pass of the model counts."""
        return self.prefill + self.block + self.commit

    @property
    def decoding(self) -> int:
        """All but the prefill: what NFE speed-ups are counted in, on both sides."""
        return self.block + self.commit


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a token was to the model when it was revealed (in method `exact`, when it was checked).

    Attributes:
        logprob: its log-probability, in nats: the model's own, before temperature, penalties and bans.
        alternatives: the most likely token ids with theirs, the most likely first.
    """

    logprob: float
    alternatives: list[tuple[int, float]]


class Record:
    """Adds up the steps of a batch.

    Args:
        num_alternatives: how many alternatives of each token to keep; None to keep no log-probabilities.
    """

    def __init__(self, state: BatchState, *, num_alternatives: int | None = None) -> None:
        device, shape = state.tokens.device, state.tokens.shape
        self._is_ntp = state.is_ntp
        self._prefill = torch.zeros(state.batch, dtype=torch.long, device=device)
        self._block = torch.zeros_like(self._prefill)
        self._commit = torch.zeros_like(self._prefill)
        # [B, C]: the pass that revealed each position, 0 for the prefill; and its entropy there
        self._revealed_by = torch.full_like(state.tokens, -1)
        self._entropy = torch.zeros(shape, device=device)
        self._num_alternatives = num_alternatives
        self._logprob = torch.zeros(shape, device=device)
        self._top_logprobs = torch.zeros((*shape, num_alternatives or 0), device=device)
        self._top_ids = torch.zeros((*shape, num_alternatives or 0), dtype=torch.long, device=device)

    def add(self, step: DecodingStep) -> None:
        """Count one step."""
        commit = step.committed & ~self._is_ntp
        self._prefill += (step.took_part & step.is_prefill).long()
        self._commit += commit.long()
        self._block += (step.took_part & ~commit & (not step.is_prefill)).long()
        number = self._block + self._commit
        if step.check is not None and step.logits.commit is not None:
            checked = step.check.accepted | step.check.replaced
            self._keep(step.logits.commit, checked, step.check.token_ids)
            rows, columns = step.check.replaced.nonzero(as_tuple=True)
            positions = step.logits.commit.positions[rows, columns]
            self._revealed_by[rows, positions] = number[rows]
            self._entropy[rows, positions] = step.check.entropy[rows, columns]
        rows, columns = step.revealed.nonzero(as_tuple=True)
        positions = step.positions[rows, columns]
        self._revealed_by[rows, positions] = number[rows]
        self._entropy[rows, positions] = step.entropy[rows, columns]
        self._keep(step.logits.block, step.revealed, step.token_ids)

    def counts(self, row: int) -> PassCounts:
        """Passes of one row."""
        return PassCounts(int(self._prefill[row]), int(self._block[row]), int(self._commit[row]))

    def revealed_by(self, row: int, start: int, length: int) -> list[int]:
        """The pass that revealed each of `length` tokens from position `start` on; 0 is the prefill."""
        found: list[int] = self._revealed_by[row, start : start + length].tolist()
        return found

    def entropy(self, row: int, start: int, length: int) -> Tensor:
        """[length] float32, nats: the entropy at each of those tokens when it was revealed."""
        return self._entropy[row, start : start + length]

    def logprobs(self, row: int, start: int, length: int, *, alternatives: int) -> list[TokenLogprobs]:
        """How likely each of those tokens was."""
        here = (row, slice(start, start + length))
        chosen = self._logprob[here].tolist()
        ids, values = (each[here][:, :alternatives].tolist() for each in (self._top_ids, self._top_logprobs))
        return [
            TokenLogprobs(logprob, list(zip(*top, strict=True)))
            for logprob, *top in zip(chosen, ids, values, strict=True)
        ]

    def _keep(self, logits: Logits, where: Tensor, token_ids: Tensor) -> None:
        """Keep the log-probabilities of `token_ids` [B, m] where `where` [B, m] bool says so."""
        if self._num_alternatives is None:
            return
        rows, columns = where.nonzero(as_tuple=True)
        positions = logits.positions[rows, columns]
        log_probs = logits.logits[rows, columns].log_softmax(dim=-1)  # [N, V]
        self._logprob[rows, positions] = log_probs.gather(1, token_ids[rows, columns, None])[:, 0]
        if self._num_alternatives:
            top = log_probs.topk(self._num_alternatives, dim=-1)
            self._top_logprobs[rows, positions], self._top_ids[rows, positions] = top.values, top.indices
