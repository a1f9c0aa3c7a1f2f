"""The loss of tokens as plainly as possible: one document, one token at a time, each pass over the whole text before it."""

from collections.abc import Iterable, Sequence

import torch
from transformers import PreTrainedModel

Marked = tuple[Sequence[int], Sequence[bool]]
"""Token ids, and which of them are scored."""


@torch.inference_mode()
def naive_scores(
    model: PreTrainedModel, documents: Iterable[Marked], *, banned: int | None = None
) -> tuple[float, float, int]:
    """Return the mean loss in nats a token, the share of tokens that are the most likely ones, and how many there are."""
    losses, right = [], 0
    for ids, scored in documents:
        for place in range(1, len(ids)):
            if scored[place]:
                logits = model(input_ids=torch.tensor([list(ids[:place])]), use_cache=False).logits[0, -1].double()
                if banned is not None:
                    logits[banned] = -torch.inf
                losses.append(float(-logits.log_softmax(dim=-1)[ids[place]]))
                right += int(logits.argmax()) == ids[place]
    return sum(losses) / len(losses), right / len(losses), len(losses)
