"""The attention mask of one row as a picture: queries downwards, keys to the right, a pixel for each pair."""

from pathlib import Path

import numpy as np

from setblock.cli.data_row import InspectedRow
from setblock.data.packing import PADDING
from setblock.errors import SetBlockError
from setblock.masks import CLEAN, to_dense, train_mask

_LARGEST = 8192  # tokens of both halves: the mask is made whole, and more pixels than that nobody can look at
_KINDS = {
    "clean → clean": "#4c78a8",
    "noisy → clean": "#72b7b2",
    "noisy → its own block": "#f58518",
    "padding": "#bbbbbb",  # attends itself, so that no query is left without a key, and nothing attends it
}
_COLOURS = ("#f4f4f4", *_KINDS.values())  # the first where there is no attention


def draw_attention(row: InspectedRow, path: Path) -> None:
    """Draw the mask of a row's doubled input; the file's ending says in which format.

    Raises:
        SetBlockError: matplotlib is not installed, the row is too long, or the file can't be written.
    """
    try:
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise SetBlockError("--picture needs matplotlib: pip install 'setblock[pictures]'") from error

    kinds = attention_kinds(row)
    figure = Figure(figsize=(8, 8.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(kinds, cmap=ListedColormap(_COLOURS), vmin=0, vmax=len(_COLOURS) - 1, interpolation="nearest")
    clean, length = len(row.labels), len(kinds)
    for line in (axes.axhline, axes.axvline):
        line(clean - 0.5, color="black", linewidth=1)
    halves = [(0, clean, "clean")] + ([(clean, length, "noisy")] if clean < length else [])
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks([(start + end - 1) / 2 for start, end, _ in halves], [name for _, _, name in halves])
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    title = f"row {row.index}: {clean} clean tokens"
    axes.set_title(title if row.block_size is None else f"{title}, {length - clean} in blocks of {row.block_size}")
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in _KINDS.items()],
        loc="outside lower center",
        ncols=len(_KINDS),
        frameon=False,
    )
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:  # a folder that is not there, an ending that is no format
        raise SetBlockError(f"can't write picture {path}: {' '.join(str(error).split())}") from error


def attention_kinds(row: InspectedRow) -> np.ndarray:
    """[T, T] int8: 0 where a query must not attend a key, else the number of the kind, counted from 1.

    Raises:
        SetBlockError: the row is too long.
    """
    inputs = row.inputs
    length = inputs.input_ids.shape[1]
    if length > _LARGEST:
        raise SetBlockError(
            f"--picture draws at most {_LARGEST} tokens, and row {row.index} has {length} in both halves: "
            "set data.row_length smaller"
        )
    mask = train_mask(
        position_ids=inputs.position_ids,
        document_ids=inputs.document_ids,
        block_ids=inputs.block_ids,
        limits=inputs.limits,
    )
    allowed = to_dense(mask, batch=1, queries=length, keys=length)[0, 0].numpy()  # [T, T]
    is_noisy = (inputs.block_ids[0] != CLEAN).numpy().astype(np.int8)  # [T]
    is_padding = (inputs.document_ids[0] == PADDING).numpy()  # [T]
    kinds = np.where(is_padding[:, None], len(_KINDS), 1 + is_noisy[:, None] + is_noisy[None, :])
    return np.where(allowed, kinds, 0)
