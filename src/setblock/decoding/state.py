"""The state of a batch of requests: what is written, committed and revealed in each row.

Knows tokens and positions. Knows nothing of models, logits or text. Rows are independent: each has a block of its own, at
its own position, in its own pass.

    0 ........ committed ........ block_start ........ block_end
      in the cache,      fed causally in      the future block: revealed tokens and masks
      exactly            the next pass

Between a row's first pass of a block and its last, committed equals block_start. Shapes: B rows, C positions, k the
largest block size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.settings import DecodingSettings


@dataclass
class BatchState:
    """Mutable; all tensors have the batch as their first dimension, and int64 unless said otherwise.

    Attributes:
        tokens: [B, C] the token at each position; anything past what is revealed.
        prompt_length: [B].
        limit: [B] the position past the last one that may be generated.
        committed: [B] how many positions the cache holds exactly.
        block_start, block_end: [B] the current block.
        block_size: [B] k, the size of the next block.
        revealed: [B, k] bool, which positions of the current block are fixed.
        is_ntp: [B] bool, rows that decode one token a pass.
        finished: [B] bool.
        stopped: [B] bool, rows that ended with an end-of-text.
        temperature: [B] float32.
        seeds: [B].
        first_logits: [B, V] float32 or None, the causal logits of the block's first token, from its first pass.
    """

    tokens: Tensor
    prompt_length: Tensor
    limit: Tensor
    committed: Tensor
    block_start: Tensor
    block_end: Tensor
    block_size: Tensor
    revealed: Tensor
    is_ntp: Tensor
    finished: Tensor
    stopped: Tensor
    temperature: Tensor
    seeds: Tensor
    first_logits: Tensor | None = None

    @property
    def batch(self) -> int:
        """B."""
        return self.tokens.shape[0]

    @property
    def block_positions(self) -> Tensor:
        """[B, k] the positions of each row's block, running past `block_end` where it is shorter than k."""
        return self.block_start[:, None] + torch.arange(self.revealed.shape[1], device=self.tokens.device)

    def open_blocks(self, rows: Tensor) -> None:
        """Begin the next block of `rows` [B] bool where the current one ends. It stops short at the row's limit."""
        start = torch.where(rows, self.block_end, self.block_start)
        end = torch.where(rows, torch.minimum(start + self.block_size, self.limit), self.block_end)
        self.block_start, self.block_end = start, end
        self.revealed &= ~rows[:, None]

    def candidates(self, end_of_text: Tensor) -> Tensor:
        """[B, k] bool, the masked positions that still matter: in the block, and before its first end-of-text."""
        return ~self.revealed & self._needed(end_of_text) & ~self.finished[:, None]

    def reveal(self, chosen: Tensor, reveal: Tensor) -> None:
        """Fix `chosen` [B, k] tokens where `reveal` [B, k] bool says so."""
        positions = self.block_positions.clamp(max=self.tokens.shape[1] - 1)
        rows, columns = reveal.nonzero(as_tuple=True)
        self.tokens[rows, positions[rows, columns]] = chosen[rows, columns]
        self.revealed |= reveal

    def advance(self, end_of_text: Tensor) -> None:
        """After a pass: finish rows whose answer is whole, open the next block of rows whose block is."""
        whole = ~(~self.revealed & self._needed(end_of_text)).any(dim=1) & ~self.finished
        stopped = whole & self._ends(end_of_text).any(dim=1)
        self.stopped |= stopped
        self.finished |= stopped | (whole & (self.block_end >= self.limit))
        self.open_blocks(whole & ~self.finished)

    def answer(self, row: int, end_of_text: Tensor) -> Tensor:
        """[n] the finished tokens of a row's answer, up to its end-of-text, which is included."""
        answer = self.tokens[row, self.prompt_length[row] : self.block_end[row]]
        ends = torch.isin(answer, end_of_text).nonzero()[:, 0]
        return answer[: int(ends[0]) + 1] if len(ends) and bool(self.stopped[row]) else answer

    def revealed_prefix(self, row: int, end_of_text: Tensor) -> Tensor:
        """[n] the tokens of a row's answer before its first masked position or end-of-text."""
        run = int(self.revealed[row].long().cumprod(dim=0).sum())
        prefix = self.tokens[row, self.prompt_length[row] : min(int(self.block_start[row]) + run, int(self.limit[row]))]
        ends = torch.isin(prefix, end_of_text).nonzero()[:, 0]
        return prefix[: int(ends[0])] if len(ends) else prefix

    def _ends(self, end_of_text: Tensor) -> Tensor:
        """[B, k] bool, revealed positions of the block that hold an end-of-text."""
        positions = self.block_positions.clamp(max=self.tokens.shape[1] - 1)
        return self.revealed & torch.isin(self.tokens.gather(1, positions), end_of_text)

    def _needed(self, end_of_text: Tensor) -> Tensor:
        """[B, k] bool, positions of the block up to its first revealed end-of-text."""
        ends = self._ends(end_of_text).cumsum(dim=1)
        before = torch.roll(ends, 1, dims=1)
        before[:, 0] = 0
        return (before == 0) & (self.block_positions < self.block_end[:, None])


def open_state(
    prompts: list[list[int]],
    settings: list[DecodingSettings],
    *,
    block_sizes: list[int],
    limits: list[int],
    device: torch.device,
) -> BatchState:
    """The state of requests before their prefill. Block size and limit of each row are already decided."""
    lengths = [len(prompt) for prompt in prompts]
    tokens = torch.zeros((len(prompts), max(limits)), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    def flags(values: list[bool]) -> Tensor:
        return torch.tensor(values, dtype=torch.bool, device=device)

    start, limit, size = column(lengths), column(limits), column(block_sizes)
    return BatchState(
        tokens=tokens.to(device),
        prompt_length=start,
        limit=limit,
        committed=torch.zeros_like(start),
        block_start=start,
        block_end=torch.minimum(start + size, limit),
        block_size=size,
        revealed=torch.zeros((len(prompts), max(block_sizes)), dtype=torch.bool, device=device),
        is_ntp=flags([each.method == "ntp" for each in settings]),
        finished=flags([False] * len(prompts)),
        stopped=flags([False] * len(prompts)),
        temperature=torch.tensor([each.temperature for each in settings], device=device),
        seeds=column([each.seed for each in settings]),
    )
