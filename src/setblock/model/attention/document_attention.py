"""Attention for training rows of several documents, run by run: nothing is computed between documents.

Without FlexAttention, a mask over whole rows forbids most of what is computed: a row of L clean tokens and as many noisy ones
has 4 L² pairs. So a row is split into runs, and each run has a separate call. A clean document attends to itself by
Transformers' own `sdpa`. A few noisy blocks of a document attend to each other, and to the clean tokens before the last of
them, by `grouped_sdpa`. The caller provides the runs, and a function that makes the `mask_mod` for a window.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.errors import SetBlockError
from setblock.masks import AttentionMask, MaskMod, by_layer_type
from setblock.model.attention.attention import LAYERED, layer_windows, plan_of
from setblock.model.attention.grouped import attention_by, grouped_sdpa

Half = Literal["both", "clean", "noisy"]


class Run(NamedTuple):
    """Adjacent tokens of a row whose attention is computed by one call."""

    length: int  # number of tokens
    document: int | None  # the number of the document in its row; None for padding, for which nothing is computed
    earlier: int = 0  # number of the document's first clean tokens that the run may see besides itself


class RowRuns(NamedTuple):
    """The runs of a row, in order: clean ones (documents by number, then padding), then noisy ones."""

    clean: tuple[Run, ...]
    noisy: tuple[Run, ...] = ()


CleanKeys = dict[nn.Module, tuple[Tensor, Tensor]]
"""Keys and values [B, H', L, D] of each attention module: a pass over clean tokens computes them, passes over noisy tokens read
them. This is no Transformers cache, since layers that are rerun in the backward pass would lose that."""


class Layout:
    """Which runs of each row a pass computes, for the attention function. It is no dataclass: FSDP2 copies
    dataclasses, and the dicts in them, on their way into each layer, and the contents of `clean_keys` would be
    lost."""

    def __init__(
        self,
        config: PretrainedConfig,
        rows: Sequence[RowRuns],
        *,
        half: Half = "both",
        clean_keys: CleanKeys | None = None,
    ) -> None:
        self.config, self.rows, self.half = config, rows, half  # the runs of each row, and the half that is computed
        self.clean_keys = clean_keys  # written by a pass over clean tokens, read by one over noisy tokens
        longest = max((run.length for row in rows for run in row.clean), default=0)
        # Whether clean runs are plainly causal and need no masks; else each has its own mask
        self.is_causal = all(window is None or window >= longest for window in layer_windows(config).values())

    def own(self, row: RowRuns) -> list[tuple[Run, bool]]:
        """Return the runs of a row that the pass computes, each with whether it has a mask."""
        clean = [(run, run.document is not None and not self.is_causal) for run in row.clean]
        noisy = [(run, run.document is not None) for run in row.noisy]
        return {"both": clean + noisy, "clean": clean, "noisy": noisy}[self.half]

    @property
    def mask_sizes(self) -> list[int]:
        """Return the number of pairs in each mask."""
        own = (each for row in self.rows for each in self.own(row))
        return [run.length * (run.earlier + run.length) for run, has_mask in own if has_mask]


def document_masks(
    layout: Layout, mask_mod_for: Callable[[int | None], MaskMod], *, device: torch.device
) -> AttentionMask:
    """Return the masks of a pass, concatenated, [1, 1, 1, pairs] bool; by layer type where a model mixes types. Transformers
    passes a 4D tensor of any shape on to the attention function unchanged."""

    def realise(window: int | None) -> Tensor:
        mask_mod, head = mask_mod_for(window), torch.zeros((1, 1), dtype=torch.long, device=device)
        masks = [torch.zeros(0, dtype=torch.bool, device=device)]
        for number, row in enumerate(layout.rows):
            b = torch.full((1, 1), number, device=device)  # no scalar tensor: indexing by one reads it back
            starts = [0, *accumulate(run.length for run in row.clean + row.noisy)]  # in the whole row
            own_starts = starts[len(row.clean) if layout.half == "noisy" else 0 :]
            for (run, has_mask), start in zip(layout.own(row), own_starts, strict=False):
                if has_mask:
                    q = torch.arange(start, start + run.length, device=device)
                    first = starts[run.document or 0]
                    k = torch.cat([torch.arange(first, first + run.earlier, device=device), q])
                    masks.append(mask_mod(b, head, q[:, None], k[None]).flatten())
        return torch.cat(masks)[None, None, None]

    return by_layer_type(layer_windows(layout.config), realise)


def attends_runs(model: PreTrainedModel) -> bool:
    """Return whether a model's attention is computed run by run, not under a mask over whole rows."""
    plan = plan_of(model)
    return plan.by_document and plan.implementation == "sdpa"


def document_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While active, let a model whose attention plan allows it take a `layout` besides masks. With activation checkpointing it
    must be active in the backward pass, too, which reruns layers."""
    plan = plan_of(model)
    if not plan.by_document:
        return nullcontext()
    return attention_by(LAYERED[plan.implementation], model.config.get_text_config())


def _document_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Compute attention by Transformers' interface: query [B, H, T, D], key and value [B, H', T, D], masks [1, 1, 1, pairs].
    Return [B, T, H, D], with zeros for padding. Without a `layout` this is `sdpa`. Raise `SetBlockError` if the model does not
    pass its `layout` on."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    layout: Layout | None = kwargs.pop("layout", None)
    if layout is None or attention_mask is None:
        if attention_mask is not None and attention_mask.shape[2:] != (query.shape[2], key.shape[2]):
            raise SetBlockError(
                "this model hands its attention function no arguments that it does not know itself: set "
                "model.attn_implementation to eager or flex_attention"
            )
        result: tuple[Tensor, None] = sdpa(module, query, key, value, attention_mask, **kwargs)
        return result
    kept = layout.clean_keys
    if kept is not None and layout.half == "clean":
        kept[module] = key.detach(), value.detach()
    masks = iter(torch.split(attention_mask.flatten(), layout.mask_sizes))
    attended = []
    for number, row in enumerate(layout.rows):
        own = layout.own(row)
        lengths = [run.length for run, _ in own]
        # Splits and not slices: the gradient of a split is one concatenation
        queries, keys, values = (torch.split(each[number, None], lengths, dim=2) for each in (query, key, value))
        clean = [keys, values]
        if kept is not None and layout.half == "noisy":
            of_clean = [run.length for run in row.clean]
            clean = [torch.split(each[number, None], of_clean, dim=2) for each in kept[module]]
        outputs = []
        for (run, has_mask), q, k, v in zip(own, queries, keys, values, strict=True):
            if run.document is None:
                outputs.append(query.new_zeros(1, run.length, query.shape[1], value.shape[-1]))
                continue
            if run.earlier:
                k, v = (
                    torch.cat([whole[run.document][:, :, : run.earlier], part], dim=2)
                    for whole, part in zip(clean, (k, v), strict=True)
                )
            if has_mask:
                mask = next(masks).view(1, 1, run.length, -1)
                output, _ = grouped_sdpa(module, q, k, v, mask, **kwargs)
            else:
                output, _ = sdpa(module, q, k, v, None, **{**kwargs, "is_causal": True})
            outputs.append(output)  # [1, q, H, D]
        attended.append(torch.cat(outputs, dim=1))
    return torch.cat(attended), None


def _document_flex(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> Any:
    """Compute attention by FlexAttention. Its `BlockMask` contains all of a layout but the keys of the clean half."""
    layout: Layout | None = kwargs.pop("layout", None)
    kept = None if layout is None else layout.clean_keys
    if layout is not None and kept is not None and layout.half == "clean":
        kept[module] = key.detach(), value.detach()
    elif kept is not None:
        clean_key, clean_value = kept[module]
        key, value = torch.cat([clean_key, key], dim=2), torch.cat([clean_value, value], dim=2)
    return ALL_ATTENTION_FUNCTIONS["flex_attention"](module, query, key, value, attention_mask, **kwargs)


for _name, _attend in (("sdpa", _document_sdpa), ("flex_attention", _document_flex)):
    # Compiled layers call it as it is: traced, its runs would be compiled anew for each batch
    _opaque = torch.compiler.disable(_attend)  # type: ignore[no-untyped-call]
    AttentionInterface.register(LAYERED[_name], _opaque)
    AttentionMaskInterface.register(LAYERED[_name], sdpa_mask)
