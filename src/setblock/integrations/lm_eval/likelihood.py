"""Compute how likely a model finds given text, by plain causal passes: what next-token decoding computes, for all
tokens at once.

Knows token ids and batches. Knows nothing of tokenizers, tasks or blocks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.model.runners.forward import head_reads_only
from setblock.model.sbd_model import SBDModel

TokenIds = Sequence[int]


@dataclass(frozen=True)
class Likelihood:
    """Hold how likely a continuation is after its context.

    Attributes:
        logprob: the sum of its tokens' log-probabilities, in nats: the model's own, with no token banned.
        is_greedy: whether each of its tokens is the most likely one.
    """

    logprob: float
    is_greedy: bool


@dataclass(frozen=True)
class _Row:
    """Hold a sequence to run, and the last tokens of it (its inputs shifted by one) that are asked for.

    Attributes:
        inputs: the tokens to feed.
        targets: for each request, the tokens that the last outputs are to predict.
    """

    inputs: tuple[int, ...]
    targets: dict[int, TokenIds]

    @property
    def num_outputs(self) -> int:
        return max(len(tokens) for tokens in self.targets.values())


@torch.inference_mode()
def likelihoods(
    model: SBDModel,
    requests: Sequence[tuple[TokenIds, TokenIds]],
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Likelihood]:
    """Return how likely each continuation is after its context. One forward pass for each batch, without a cache.

    Requests that need the same inputs, as the choices of a question whose answers are one token long, share a row. An
    adapter on the future block takes no part: there is no such block.

    Args:
        requests: (context, continuation), neither empty. What is too long loses its beginning; a continuation must fit in
            whole.
        batch_size: how many rows a pass takes, at least 1.
        max_length: the most tokens of a row; None for as many as the model's context holds.
        on_progress: called after each pass with the number of requests that it answered.

    Raises:
        SetBlockError: a continuation is too long.
    """
    rows = sorted(
        _rows(requests, max_length=max_length or model.context_length), key=lambda row: len(row.inputs), reverse=True
    )
    found: dict[int, Likelihood] = {}
    for first in range(0, len(rows), batch_size):
        answered = _run(model, rows[first : first + batch_size])
        found |= answered
        if on_progress is not None:
            on_progress(len(answered))
    return [found[index] for index in range(len(requests))]


def _rows(requests: Sequence[tuple[TokenIds, TokenIds]], *, max_length: int | None) -> list[_Row]:
    targets: dict[tuple[int, ...], dict[int, TokenIds]] = defaultdict(dict)
    for index, (context, continuation) in enumerate(requests):
        assert context
        assert continuation
        tokens = (*context, *continuation)
        if max_length is not None:
            if len(continuation) > max_length:
                raise SetBlockError(f"a continuation has {len(continuation)} tokens; at most {max_length} fit")
            tokens = tokens[-(max_length + 1) :]
        targets[tokens[:-1]][index] = continuation
    return [_Row(inputs, of_row) for inputs, of_row in targets.items()]


def _run(model: SBDModel, rows: Sequence[_Row]) -> dict[int, Likelihood]:
    longest = max(len(row.inputs) for row in rows)
    # Padding comes behind a row, where no token that counts looks at it: attention is causal.
    inputs = torch.tensor([[*row.inputs, *[0] * (longest - len(row.inputs))] for row in rows])  # [B, T]
    ends = [number * longest + len(row.inputs) for number, row in enumerate(rows)]
    index = torch.cat([torch.arange(end - row.num_outputs, end) for end, row in zip(ends, rows, strict=True)])
    with head_reads_only(model.model, index.to(model.device)):
        logits: Tensor = model.model(input_ids=inputs.to(model.device), use_cache=False).logits[0]  # [M, V]
    found = {}
    for row, of_row in zip(rows, torch.split(logits, [row.num_outputs for row in rows]), strict=True):
        log_total = of_row.float().logsumexp(dim=-1)  # [m], a row at a time: float32 logits of all may be too large
        likeliest = of_row.argmax(dim=-1)
        for request, tokens in row.targets.items():
            wanted = torch.tensor(tokens, device=of_row.device)
            last = slice(len(of_row) - len(tokens), None)
            chosen = of_row[last].gather(1, wanted[:, None])[:, 0].float()
            found[request] = Likelihood(
                logprob=float((chosen - log_total[last]).double().sum()),
                is_greedy=bool((likeliest[last] == wanted).all()),
            )
    return found
