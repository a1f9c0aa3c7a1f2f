"""The attention masks of Set Block Decoding: a `mask_mod` function for training and one for decoding.

A `mask_mod` takes four integer tensors that broadcast together, (batch, head, query index, key index), and returns True
where the query may attend the key: FlexAttention's convention. `to_dense` evaluates one to a boolean tensor,
`to_block_mask` compiles it to a FlexAttention `BlockMask`; both come from the same function, so they can't disagree.

Training and decoding share one idea: a query sees clean tokens *before its limit*. A causal token's limit is its position + 1.
In decoding, a block token's limit is the block's end, so a block sees all of itself. In training, a noisy token's limit is
its block's start, and the noisy tokens of the block are added.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
AttentionMask = Tensor | BlockMask | dict[str, Tensor | BlockMask]

CLEAN = -1
"""Block id of a token that is in no noisy block."""


def train_mask(
    *,
    position_ids: Tensor,
    document_ids: Tensor,
    block_ids: Tensor,
    limits: Tensor,
    window: int | None = None,
    causal_block: bool = False,
) -> MaskMod:
    """Return the training mask over a clean sequence and any number of noisy blocks behind it (paper, section 3, figure 2).

    Clean queries attend clean keys causally; noisy queries attend the clean keys of strictly earlier blocks and, in both
    directions, their own block. Nothing crosses a document.

    Args:
        position_ids: [B, T] position of each token in its document.
        document_ids: [B, T] the document each token belongs to.
        block_ids: [B, T] `CLEAN`, or an id that is unique in its row to one noisy block.
        limits: [B, T] position + 1 for clean tokens, the position of the block's first token for noisy ones.
        window: the sliding window of the attention layer, in tokens; None for full attention.
        causal_block: noisy queries attend no later token of their block.
    """

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        position, key_position = position_ids[b, q_idx], position_ids[b, kv_idx]
        block, key_block = block_ids[b, q_idx], block_ids[b, kv_idx]
        earlier = (key_block == CLEAN) & (key_position < limits[b, q_idx])
        own = (key_block == block) & (block != CLEAN)
        if causal_block:
            own = own & (key_position <= position)
        seen = (document_ids[b, q_idx] == document_ids[b, kv_idx]) & (earlier | own)
        return seen if window is None else seen & (position - key_position < window)

    return mask_mod


def decode_mask(*, position_ids: Tensor, limits: Tensor, window: int | None = None) -> MaskMod:
    """Return the decoding mask of eq. 9 over a cache whose slot s holds the token at position s (paper, section 3, figure 3).

    One function serves the prefill, the block pass and the fused commit + first pass, for only a query's limit decides what it
    sees. The limit is its position + 1 where it runs causally, and the end of its block where it is in the future block.

    Args:
        position_ids: [B, Q] positions of the queries.
        limits: [B, Q] the first position each query must not see.
        window: the sliding window of the attention layer, in tokens; None for full attention.
    """

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        seen = kv_idx < limits[b, q_idx]
        return seen if window is None else seen & (position_ids[b, q_idx] - kv_idx < window)

    return mask_mod


def to_dense(mask_mod: MaskMod, *, batch: int, queries: int, keys: int, index: Tensor | None = None) -> Tensor:
    """Evaluate a `mask_mod` to a boolean tensor [batch, 1, queries, keys], True where attention is allowed. `index` is 0, 1, 2,
    ... up to the largest of these sizes at least, on the device of the result; made here by default, on the CPU."""
    index = torch.arange(max(batch, queries, keys)) if index is None else index
    b, h = index[:batch].view(-1, 1, 1, 1), index[:1].view(1, 1, 1, 1)
    q_idx, kv_idx = index[:queries].view(1, 1, -1, 1), index[:keys].view(1, 1, 1, -1)
    return mask_mod(b, h, q_idx, kv_idx).expand(batch, 1, queries, keys)


def to_block_mask(
    mask_mod: MaskMod, *, batch: int, queries: int, keys: int, device: torch.device | str = "cpu"
) -> BlockMask:
    """Compile a `mask_mod` to a FlexAttention `BlockMask` of the same shape as `to_dense` gives.

    The result is that of `torch.nn.attention.flex_attention.create_block_mask`, which needs a tensor [queries, keys] unless it
    is compiled. Here a few rows of tiles are evaluated at a time, and only the number of pairs in each tile is kept.
    """
    rows, columns = -(-queries // _TILE), -(-keys // _TILE)
    pairs = torch.zeros((batch, 1, rows, columns), dtype=torch.long, device=device)
    b = torch.arange(batch, device=device)[:, None, None, None]
    h = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=device)
    kv_idx = torch.arange(keys, device=device)[None, None, None, :]
    at_once = max(1, _PAIRS_AT_ONCE // (batch * keys * _TILE))
    for row in range(0, rows, at_once):
        q_idx = torch.arange(row * _TILE, min(queries, (row + at_once) * _TILE), device=device)  # [n]
        allowed = mask_mod(b, h, q_idx[None, None, :, None], kv_idx).expand(batch, 1, len(q_idx), keys)
        tiles = pad(allowed, (0, columns * _TILE - keys, 0, -len(q_idx) % _TILE))  # whole tiles, False behind the end
        tiles = tiles.view(batch, 1, -1, _TILE, columns, _TILE)
        pairs[:, :, row : row + at_once] = tiles.sum(dim=(3, 5))
    full = pairs == _TILE * _TILE
    partial = (pairs > 0) & ~full
    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(full), BLOCK_SIZE=_TILE, mask_mod=mask_mod, seq_lengths=(queries, keys)
    )


_TILE = 128  # queries and keys of a tile: FlexAttention's own default
_PAIRS_AT_ONCE = 1 << 24


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Return int32 how many tiles [B, 1, R, C] of each row are True, [B, 1, R], and the columns [B, 1, R, C], theirs first."""
    order = tiles.long().argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(dim=-1, dtype=torch.int32), order.int()


@dataclass(frozen=True)
class MaskForm:
    """Make the masks that a model's layers take. Reading a model's config is slow, so one form makes many masks."""

    windows: dict[str, int | None]  # the sliding window of each attention layer type, None for full attention
    implementation: str  # Transformers' name of the attention implementation
    dtype: torch.dtype  # of the model
    index: Tensor  # 0, 1, 2, ... up to the largest batch, number of queries or of keys, on the model's device

    def mask(
        self, mask_mod_for: Callable[[int | None], MaskMod], *, batch: int, queries: int, keys: int
    ) -> AttentionMask:
        """Return the `attention_mask` argument that makes every layer follow `mask_mod_for(its window)`."""
        sizes = {"batch": batch, "queries": queries, "keys": keys}
        return by_layer_type(self.windows, lambda window: self.realised(mask_mod_for(window), **sizes))

    def realised(self, mask_mod: MaskMod, *, batch: int, queries: int, keys: int) -> Tensor | BlockMask:
        """Return the mask of the layers of one type, [batch, 1, queries, keys]."""
        if self.implementation == "flex_attention":
            return to_block_mask(mask_mod, batch=batch, queries=queries, keys=keys, device=self.index.device)
        allowed = to_dense(mask_mod, batch=batch, queries=queries, keys=keys, index=self.index)
        if self.implementation == "sdpa":
            return allowed
        # Eager attention adds its mask to the scores.
        return torch.zeros((), dtype=self.dtype, device=allowed.device).where(allowed, torch.finfo(self.dtype).min)


def by_layer_type(windows: dict[str, int | None], realise: Callable[[int | None], Tensor | BlockMask]) -> AttentionMask:
    """Return the mask that `realise` makes for the window, or a dict of them by layer type where a model mixes them.
    Transformers takes either, and leaves a 4D tensor or a `BlockMask` as it is."""
    if len(windows) == 1:
        return realise(next(iter(windows.values())))
    return {kind: realise(window) for kind, window in windows.items()}


def added(mask: Tensor) -> Tensor:
    """Return what a mask adds to scores, float32: 0 where a bool mask is True, and minus infinity elsewhere."""
    return mask.float() if mask.dtype != torch.bool else torch.where(mask, 0.0, -torch.inf)
