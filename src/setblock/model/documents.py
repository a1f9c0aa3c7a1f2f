"""Attention of one document at a time, for training rows of several: what lies between documents is not computed.

Knows where documents stand in rows, and how Transformers calls attention. Knows nothing of blocks: the caller brings the
function that makes the `mask_mod` for a window.

Without FlexAttention, a mask over whole rows forbids most of what is computed: a row of L clean tokens and as many noisy ones
in n documents has 4 L² pairs, and its documents have 4 L² / n. So the sequence is split where documents begin, and each
document's parts are attended together, by Transformers' own `sdpa`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.errors import SetBlockError
from setblock.masks import MaskMod
from setblock.model.attention import AttentionMask, attention_by, by_layer_type

DOCUMENT_SDPA = "setblock_document_sdpa"


@dataclass(frozen=True)
class Row:
    """Where a row's documents stand.

    Attributes:
        runs: lengths of the runs of tokens of one document, or of padding, in order; together the row's length.
        documents: for each document, which of the runs are its own.
    """

    runs: list[int]
    documents: list[list[int]]

    @property
    def lengths(self) -> list[int]:
        """Of its documents."""
        return [sum(self.runs[run] for run in document) for document in self.documents]

    def tokens(self, document: Sequence[int]) -> Tensor:
        """[n] int64, where in the row the document's tokens are."""
        places = torch.split(torch.arange(sum(self.runs)), self.runs)
        return torch.cat([places[run] for run in document])

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key of one document."""
        return sum(length**2 for length in self.lengths)


def document_rows(document_ids: Tensor, *, padding: int) -> tuple[Row, ...]:
    """Where documents stand in each row of `document_ids` [B, T] int64; a document's tokens may be in several places.

    Args:
        padding: the id of tokens that nobody computes anything for.
    """
    rows = []
    for row in document_ids.cpu():
        ids, lengths = torch.unique_consecutive(row, return_counts=True)
        documents: dict[int, list[int]] = defaultdict(list)
        for run, document in enumerate(ids.tolist()):
            if document != padding:
                documents[document].append(run)
        rows.append(Row(lengths.tolist(), list(documents.values())))
    return tuple(rows)


def document_masks(
    config: PretrainedConfig,
    rows: Sequence[Row],
    mask_mod_for: Callable[[int | None], MaskMod],
    *,
    device: torch.device,
) -> AttentionMask:
    """The masks of all documents, one behind the other, [1, 1, 1, pairs] bool; by layer type where a model mixes them.

    Transformers hands a 4D tensor to the attention function as it is, whatever its shape.
    """

    def realise(window: int | None) -> Tensor:
        mask_mod, head = mask_mod_for(window), torch.zeros((), dtype=torch.long, device=device)
        masks = []
        for number, row in enumerate(rows):
            b = torch.tensor(number, device=device)
            for document in row.documents:
                places = row.tokens(document).to(device)
                masks.append(mask_mod(b, head, places[:, None], places[None]).flatten())
        return torch.cat(masks)[None, None, None]

    return by_layer_type(config, realise)


def document_attention(config: PretrainedConfig) -> AbstractContextManager[None]:
    """While active, a model whose attention is `sdpa` takes `document_rows` and `document_masks`, and masks as before.

    To be active in the backward pass, too, where it runs layers again (activation checkpointing).
    """
    return attention_by(DOCUMENT_SDPA, config) if config._attn_implementation == "sdpa" else nullcontext()


def _document_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    document_rows: Sequence[Row] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What Transformers calls: query [B, H, T, D], key and value [B, H', T, D], masks [1, 1, 1, pairs]. Returns [B, T, H, D],
    with zeros for padding.

    Args:
        document_rows: as the model was given them; without them this is `sdpa`.

    Raises:
        SetBlockError: the model does not hand on what it was given.
    """
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if document_rows is None or attention_mask is None:
        if attention_mask is not None and attention_mask.shape[2:] != (query.shape[2], key.shape[2]):
            raise SetBlockError(
                "this model hands its attention function no arguments that it does not know itself: set "
                "model.attn_implementation to eager or flex_attention"
            )
        result: tuple[Tensor, None] = sdpa(module, query, key, value, attention_mask, **kwargs)
        return result
    masks = iter(torch.split(attention_mask.flatten(), [n * n for row in document_rows for n in row.lengths]))
    attended = []
    for number, row in enumerate(document_rows):
        # Splits and not slices: the gradient of a split is one concatenation
        parts = [torch.split(each[number, None], row.runs, dim=2) for each in (query, key, value)]
        runs = [query.new_zeros(1, n, query.shape[1], value.shape[-1]) for n in row.runs]
        for document, length in zip(row.documents, row.lengths, strict=True):
            own = (torch.cat([part[run] for run in document], dim=2) for part in parts)
            result = sdpa(module, *own, next(masks).view(1, 1, length, length), **kwargs)
            outputs = torch.split(result[0], [row.runs[run] for run in document], dim=1)
            for run, output in zip(document, outputs, strict=True):
                runs[run] = output
        attended.append(torch.cat(runs, dim=1))
    return torch.cat(attended), None


AttentionInterface.register(DOCUMENT_SDPA, _document_sdpa)
AttentionMaskInterface.register(DOCUMENT_SDPA, sdpa_mask)
