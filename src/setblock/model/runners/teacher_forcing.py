"""Scores of a model's next tokens on documents: loss and accuracy given the true tokens before each (teacher forcing).

The probabilities are those of plain decoding, without blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from setblock.data.packing import Document
from setblock.model.runners.forward import logits_at

_TOKENS_AT_ONCE = 4096  # the most tokens of a pass, padding included; a longer document is a pass of its own
_LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32


@dataclass(frozen=True)
class TokenScores:
    """The scores of the tokens that carry loss, over all documents."""

    loss: float  # the mean of -log p, in nats a token
    accuracy: float  # the share of tokens that are the most likely ones, in 0..1
    tokens: int
    documents: int


def has_scores(document: Document) -> bool:
    """Return whether a document has a token to score: one that carries loss and has tokens before it."""
    return any(document.carries_loss[1:])


@torch.no_grad()
def token_scores(
    model: PreTrainedModel,
    documents: Sequence[Document],
    *,
    mask_token_id: int | None = None,
    wrapped: Callable[..., object] | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> TokenScores:
    """Return the scores of the tokens that carry loss; `has_scores` must hold for each document.

    Args:
        model: the model itself, in evaluation mode, and with its adapter if it has one.
        mask_token_id: the mask token, which is never generated and is given no probability.
        wrapped: called in place of the model, if a trainer has wrapped it.
        on_progress: called with the number of documents scored so far.
    """
    loss, right, tokens, done = 0.0, 0, 0, 0
    most = max(1, _LOGITS_AT_ONCE // int(model.config.get_text_config().vocab_size))
    for batch in _batches(documents, most=most):
        # Padded on the right, where no causal token sees it
        ids = pad_sequence([torch.as_tensor(each.token_ids).long() for each in batch], batch_first=True)  # [B, T]
        carries = pad_sequence([torch.as_tensor(each.carries_loss).bool() for each in batch], batch_first=True)
        carries[:, 0] = False  # no token is before it
        places = carries.flatten().nonzero()[:, 0]  # [M], of the targets in [B * T]
        targets = ids.flatten()[places].to(model.device)
        positions = torch.arange(ids.shape[1]).expand_as(ids).to(model.device)
        for here in torch.split(places, most):  # several parts if a single document has more targets
            logits = logits_at(
                model,
                here.to(model.device) - 1,
                input_ids=ids.to(model.device),
                position_ids=positions,
                attention_mask=None,
                wrapped=wrapped,
            ).float()  # [m, V]
            if mask_token_id is not None:
                logits[:, mask_token_id] = -torch.inf
            wanted, targets = targets[: len(here)], targets[len(here) :]
            loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
            right += int((logits.argmax(dim=-1) == wanted).sum())
        tokens, done = tokens + len(places), done + len(batch)
        on_progress(done)
    return TokenScores(loss / tokens, right / tokens, tokens, len(documents))


def _batches(documents: Sequence[Document], *, most: int) -> Iterator[list[Document]]:
    """Yield batches of documents of similar length, the longest first, with at most `most` targets or a single document."""
    batch: list[Document] = []
    targets = 0
    for document in sorted(documents, key=len, reverse=True):
        own = sum(document.carries_loss)
        if batch and ((len(batch) + 1) * len(batch[0]) > _TOKENS_AT_ONCE or targets + own > most):
            yield batch
            batch, targets = [], 0
        batch.append(document)
        targets += own
    if batch:
        yield batch
