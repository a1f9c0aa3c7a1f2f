"""Draw the attention masks of docs/method.md, from the library's own mask functions.

    python docs/figures.py

`tests/test_docs.py` checks that the page shows what this prints.
"""

import torch
from torch import Tensor

from setblock.masks import CLEAN, decode_mask, to_dense, train_mask


def drawn(allowed: Tensor, *, queries: list[str], keys: list[str]) -> str:
    """Return a boolean [Q, K] mask as text: a row for each query, `x` where it attends the key."""
    width = max(map(len, queries + keys))
    lines = [" ".join(["query".ljust(width + 2), *(key.rjust(width) for key in keys)])]
    for name, row in zip(queries, allowed.tolist(), strict=True):
        lines.append(" ".join([name.ljust(width + 2).ljust(5), *(("x" if yes else ".").rjust(width) for yes in row)]))
    return "\n".join(lines)


def training_figure(*, length: int = 4, block_size: int = 2) -> str:
    """Return the training mask over the doubled input [clean, noisy] of one document."""
    positions = torch.arange(length)
    blocks = positions // block_size
    mask_mod = train_mask(
        position_ids=positions.repeat(2)[None],
        document_ids=torch.zeros((1, 2 * length), dtype=torch.long),
        block_ids=torch.cat([torch.full((length,), CLEAN), blocks])[None],
        limits=torch.cat([positions + 1, blocks * block_size])[None],
    )
    names = [f"x{i}" for i in range(length)] + [f"n{i}" for i in range(length)]
    allowed = to_dense(mask_mod, batch=1, queries=2 * length, keys=2 * length)[0, 0]
    return drawn(allowed, queries=names, keys=names)


def decoding_figure(*, committed: int, block_start: int, block_size: int = 2) -> str:
    """Return the mask of a pass that commits positions committed..block_start - 1 and runs the block that follows them."""
    end = block_start + block_size
    positions = torch.arange(committed, end)
    limits = torch.where(positions >= block_start, end, positions + 1)
    mask_mod = decode_mask(position_ids=positions[None], limits=limits[None])
    names = [f"x{i}" if i < block_start else f"b{i}" for i in range(end)]
    allowed = to_dense(mask_mod, batch=1, queries=len(positions), keys=end)[0, 0]
    return drawn(allowed, queries=names[committed:], keys=names)


FIGURES = {
    "training": training_figure(),
    "block": decoding_figure(committed=4, block_start=4),
    "fused": decoding_figure(committed=4, block_start=6),
}
"""Name -> text. In the page, each is a `text` block that starts with its header line."""


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        print(f"{name}\n\n{figure}\n")
