"""Attention of static shape over a paged cache, for passes that are captured as one CUDA graph.

Shapes: R rows of Q queries; H query heads, G of them to each of H' key heads; heads of size D. A layer's cache is
[P, page, H', D], keys and values each: P pages, whose positions are contiguous in memory with all their heads. The page table
[R, M] names the pages of each row's positions, from the first on. Entries behind a row's last key may be any page.

Which keys a query sees is said by `masks.decode_mask`. A query that sees none gives zeros, so padding needs no care.

No function here reads a value on the host, copies one to the device, or makes a shape that depends on values. There are three
implementations, each of which prepares a pass once (`places`, `mask`) and then attends in each layer:

- `gather`: copies the rows' keys and values, for PyTorch's own attention (SDPA). It runs everywhere.
- `flex`: FlexAttention, with the page table as its block mask. It copies nothing, and splits the keys where queries are few.
- `triton`: a kernel of this package (`paged_kernel`), which does the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from setblock.errors import SetBlockError, check_one_of
from setblock.masks import AttentionMask, MaskMod, by_layer_type, decode_mask, to_dense
from setblock.model.attention.attention import OURS
from setblock.model.attention.invariant import invariant_attention
from setblock.model.compiled import compiled_for_sizes
from setblock.model.weights import is_invariant

Kind = Literal["gather", "flex", "triton"]


@dataclass(frozen=True)
class PagedInput:
    """What the queries of a pass see: tensors on the model's device, and sizes."""

    page_table: Tensor  # [R, M] int64
    positions: Tensor  # [R, Q] int64, as in `masks.decode_mask`, like the following two
    limits: Tensor  # [R, Q] int64; 0 for padding, which sees nothing
    pages: int  # P
    page_tokens: int  # positions of a page

    def mask_mod(self, window: int | None) -> MaskMod:
        """Return the mask of layers with this window, over positions."""
        return decode_mask(position_ids=self.positions, limits=self.limits, window=window)

    def slots(self, positions: Tensor) -> Tensor:
        """Return the slots [R, n] of `positions` [R, n] or [1, n] of each row: page · page_tokens + place in the page."""
        positions = positions.expand(len(self.page_table), -1)
        number = (positions // self.page_tokens).clamp(max=self.page_table.shape[1] - 1)
        return self.page_table.gather(1, number) * self.page_tokens + positions % self.page_tokens

    def bounds(self, window: int | None) -> Tensor:
        """Return the range of positions that each query sees, [R, Q, 2] int64: from the first up to the second, which is left
        out."""
        first = torch.zeros_like(self.limits) if window is None else (self.positions - window + 1).clamp(min=0)
        return torch.stack([first, self.limits], dim=-1)

    @property
    def ends(self) -> Tensor:
        """[R] int64, the position past the last that any query of a row sees."""
        return self.limits.amax(dim=1)


class Scores(NamedTuple):
    """How a layer computes its scores."""

    scale: float | None = None  # of the products; by default 1 / √D
    softcap: float | None = None  # c in c tanh(score / c), after the scale
    sinks: Tensor | None = None  # [H], one more score of each head, whose value is zero


PLAIN = Scores()


class PagedAttention(Protocol):
    """An implementation, for a model with G query heads to each key head. Its results are the same as the others', but for
    rounding."""

    # Whether a page that is given to a row must hold no NaN or infinity, whoever left it: 0 times NaN is NaN
    needs_finite_pages: bool

    def places(self, given: PagedInput) -> Any:
        """Return what a pass needs besides masks, in all layers."""

    def mask(self, given: PagedInput, window: int | None) -> Tensor | BlockMask:
        """Return the mask of a pass, for layers with this window; of four dimensions, since Transformers passes such a mask on
        unchanged."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, places: Any, mask: Any, scores: Scores = PLAIN
    ) -> Tensor:
        """Return attention [R, Q, H, D] of a query [R, H, Q, D] to a layer's cache, keys and values [P, page, H', D]."""


class _Gathered(NamedTuple):
    slots: Tensor  # [R * K] int64, the slot of each key
    sees: Tensor  # [R, Q, 1, 1] bool, queries that see any key


class GatherAttention:
    """Copies the rows' keys and values to [R, H', K, D], K = M · page, for SDPA. A shorter page table makes a smaller copy."""

    needs_finite_pages = False

    def __init__(self, *, of_group: int) -> None:
        self._of_group = of_group

    def places(self, given: PagedInput) -> _Gathered:
        """See `PagedAttention`."""
        keys = given.page_table.shape[1] * given.page_tokens
        positions = torch.arange(keys, device=given.limits.device)[None]
        slots, ends = given.slots(positions), given.ends[:, None]
        # Behind a row's end other rows may have left NaN: its first position is read there, which it sees anyway
        slots = torch.where(positions < ends, slots, slots[:, :1])
        return _Gathered(slots.flatten(), (given.limits > 0)[..., None, None])

    def mask(self, given: PagedInput, window: int | None) -> Tensor:
        """Return a bool mask [R, 1, G Q, K]."""
        (rows, queries), keys = given.limits.shape, given.page_table.shape[1] * given.page_tokens
        index = torch.arange(max(rows, queries, keys), device=given.limits.device)
        allowed = to_dense(given.mask_mod(window), batch=rows, queries=queries, keys=keys, index=index)
        return allowed.repeat(1, 1, self._of_group, 1)

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        places: _Gathered,
        mask: Tensor,
        scores: Scores = PLAIN,
    ) -> Tensor:
        """See `PagedAttention`."""
        (rows, heads, queries, size), groups = query.shape, keys.shape[2]
        key, value = (
            each.flatten(0, 1).index_select(0, places.slots).view(rows, -1, groups, size).transpose(1, 2)
            for each in (keys, values)
        )
        together = query.reshape(rows, groups, -1, size)  # [R, H', G Q, D]
        if scores.softcap is not None or scores.sinks is not None:
            attended = _eager(together, key, value, mask, scores)
        elif is_invariant(query.dtype, query.device):
            attended = invariant_attention(together, key, value, mask, scale=scores.scale)
        else:
            attended = scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=scores.scale)
        attended = attended.reshape(rows, heads, queries, size).transpose(1, 2)
        return torch.where(places.sees, attended, 0.0)


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, form: Scores) -> Tensor:
    """Return attention with soft-capping or sinks, [R, H', G Q, D], as Transformers' `eager` computes it. SDPA has neither."""
    rows, groups, queries, size = query.shape
    scores = query @ key.transpose(2, 3) * (size**-0.5 if form.scale is None else form.scale)
    if form.softcap is not None:
        scores = (scores / form.softcap).tanh() * form.softcap
    scores = scores.masked_fill(~mask, -torch.inf)  # [R, H', G Q, K]
    if form.sinks is not None:
        of_group = len(form.sinks) // groups
        sinks = form.sinks.view(groups, of_group).repeat_interleave(queries // of_group, dim=1)[None, :, :, None]
        scores = torch.cat([scores, sinks.expand(rows, -1, -1, -1).to(scores.dtype)], dim=3)
    weights = scores.softmax(dim=3, dtype=torch.float32).to(query.dtype)
    return weights[..., : key.shape[2]] @ value


class FlexAttention:
    """FlexAttention over the whole cache, as keys of one row. A page is a block of keys, and the page table lists those of each
    row. It is compiled once for each shape and window, and not for other tables or limits."""

    needs_finite_pages = True

    def __init__(self, *, of_group: int, backend: str = "inductor") -> None:
        # The kernel that splits keys takes up to 127 queries, and groups of 1, 2, 4, ... heads. The heads of other groups
        # become queries of one head, as in `grouped_sdpa`
        self._folded = 1 if of_group & (of_group - 1) == 0 else of_group
        self._rows = of_group  # query heads that share a block of queries
        self._attend = _compiled_flex(backend)

    def places(self, given: PagedInput) -> None:
        """Return nothing: the mask contains the page table."""

    def mask(self, given: PagedInput, window: int | None) -> BlockMask:
        """Return the mask over the whole cache."""
        table, page_tokens, pages = given.page_table, given.page_tokens, given.pages
        (rows, most), queries, device = table.shape, given.limits.shape[1], table.device

        # 1. The pages that any query of a row sees, in order: the first `count` of `index`
        first = given.bounds(window)[..., 0].amin(dim=1) // page_tokens  # [R]
        end = -(-given.ends // page_tokens)
        place = torch.arange(most, device=device)[None]
        listed = min(most, pages)
        index = table.new_zeros((rows, pages), dtype=torch.int32)
        index[:, :listed] = table.gather(1, (first[:, None] + place).clamp(max=most - 1))[:, :listed]
        count = (end - first).clamp(min=0).int()

        # 2. Of each page of the cache, its number in the row; -1 where the row does not see it
        number = table.new_full((rows, pages + 1), -1)
        number.scatter_(
            1, torch.where((place >= first[:, None]) & (place < end[:, None]), table, pages), place + 0 * table
        )
        allowed = given.mask_mod(window)

        def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            page = number[b, kv_idx // page_tokens]
            return (page >= 0) & allowed(b, h, q_idx % queries, page * page_tokens + kv_idx % page_tokens)

        return BlockMask.from_kv_blocks(
            count[:, None, None],
            index[:, None, None],
            BLOCK_SIZE=(max(128, 1 << (self._rows * queries - 1).bit_length()), page_tokens),
            mask_mod=mask_mod,
            seq_lengths=(self._folded * queries, pages * page_tokens),
            compute_q_blocks=False,
        )

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, places: None, mask: BlockMask, scores: Scores = PLAIN
    ) -> Tensor:
        """See `PagedAttention`."""
        rows, heads, queries, size = query.shape
        key, value = (each.flatten(0, 1).transpose(0, 1)[None] for each in (keys, values))  # [1, H', P page, D], views
        folded = query.reshape(rows, heads // self._folded, -1, size)
        capped = None if scores.softcap is None else _soft_capping(scores.softcap)
        attended, found = self._attend(
            folded,
            key,
            value,
            score_mod=capped,
            block_mask=mask,
            scale=scores.scale,
            enable_gqa=True,
            return_aux=AuxRequest(lse=scores.sinks is not None),
        )
        attended = attended.reshape(rows, heads, queries, size)
        if scores.sinks is not None:  # the share of all other scores
            assert found.lse is not None
            logsumexp = found.lse.reshape(rows, heads, queries)
            attended = attended * (logsumexp - scores.sinks[:, None]).sigmoid().to(attended.dtype)[..., None]
        return attended.transpose(1, 2)


@cache  # one function for each value, so that layers share what is compiled
def _soft_capping(softcap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (score / softcap).tanh() * softcap

    return capped


@cache
def _compiled_flex(backend: str) -> Callable[..., tuple[Tensor, AuxOutput]]:
    """Return compiled FlexAttention. A shape too many is an error, and not uncompiled attention, which computes all scores of
    the cache."""
    return compiled_for_sizes(flex_attention, backend=backend, fullgraph=True)


class TritonAttention:
    """The kernel of `paged_kernel`, which reads the page table itself."""

    needs_finite_pages = False

    def __init__(self, *, of_group: int) -> None:
        from setblock.model.attention.paged_kernel import attend_pages  # needs Triton

        self._attend = attend_pages

    def places(self, given: PagedInput) -> Tensor:
        """Return the page table [R, M] int32."""
        return given.page_table.int()

    def mask(self, given: PagedInput, window: int | None) -> Tensor:
        """Return the bounds of each query, [R, 1, Q, 2] int32."""
        return given.bounds(window).int()[:, None]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, places: Tensor, mask: Tensor, scores: Scores = PLAIN
    ) -> Tensor:
        """See `PagedAttention`."""
        scale = query.shape[-1] ** -0.5 if scores.scale is None else scores.scale
        return self._attend(query, keys, values, places, mask, scale=scale, softcap=scores.softcap, sinks=scores.sinks)


def paged_attention(device: torch.device, *, of_group: int, kind: Kind | None = None) -> PagedAttention:
    """Return the implementation for a device, and a model with `of_group` query heads to each key head.

    `kind` names one. By default it is `flex` on a GPU where Triton is installed, and `gather` elsewhere. Raise `SetBlockError`
    if `kind` is none of them, or Triton is missing that it needs.
    """
    has_triton = find_spec("triton") is not None
    if kind is None:
        kind = "flex" if device.type == "cuda" and has_triton else "gather"
    check_one_of("kind", kind, get_args(Kind))
    if not has_triton and (kind == "triton" or (kind == "flex" and device.type == "cuda")):
        raise SetBlockError(f"paged attention {kind} needs Triton, which is not installed: use gather")
    made: dict[str, Callable[..., PagedAttention]] = {
        "gather": GatherAttention,
        "flex": FlexAttention,
        "triton": TritonAttention,
    }
    return made[kind](of_group=of_group)


# As an attention function of Transformers


class PagedCall(NamedTuple):
    """The argument `paged` of a model's call, which its layers pass on to their attention function."""

    attention: PagedAttention
    places: Any  # its own


PAGED = f"{OURS}paged"
"""The name under which `attend_layer` is registered with Transformers."""


def paged_arguments(
    attention: PagedAttention, given: PagedInput, windows: dict[str, int | None]
) -> dict[str, AttentionMask | PagedCall]:
    """Return the arguments `attention_mask` and `paged` of a model's call, whose layers must call `PAGED` (`attention_by`).
    `windows` are those of `attention.layer_windows`."""
    mask = by_layer_type(windows, lambda window: attention.mask(given, window))
    return {"attention_mask": mask, "paged": PagedCall(attention, attention.places(given))}


def attend_layer(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    *,
    paged: PagedCall | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention by Transformers' interface: query [R, H, Q, D], and a layer's cache [P, page, H', D] as key and value.
    Return [R, Q, H, D]. Raise `SetBlockError` for a position bias or dropout, or if `paged` does not arrive."""
    if paged is None:
        raise SetBlockError(
            f"{type(module).__name__} does not pass its arguments on to attention: it can't attend pages"
        )
    if position_bias is not None or dropout:
        other = "dropout" if dropout else "position_bias"
        raise SetBlockError(f"{type(module).__name__} has attention with {other}: it can't attend pages")
    attention, places = paged
    return attention.attend(query, key, value, places, attention_mask, Scores(scaling, softcap, s_aux)), None


AttentionInterface.register(PAGED, attend_layer)
