"""Reproduce tables 3 and 4 of the paper, digit by digit, from what its figure 11 computes.

    python examples/paper_tables.py

Prints each cell as it comes out, and marks one that the paper prints otherwise. The exit status is then 1. Then it sets each
error of figure 11 right, and prints how many cells change:

- the feed-forward layer has hidden * FFN, 4,096 times too many;
- 3.35 TB/s of bandwidth are taken for 3.35 TiB/s;
- keys and values have heads * KV heads = 256, where 8 heads of 128 make 1,024;
- attention counts one request of a batch (our reading);
- the feed-forward layer has two matrices instead of three (our reading).

Both readings are needed for every digit. `setblock roofline` has none of these errors.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import (
    BLOCK_SIZE,
    BLOCK_SIZES,
    KV_LENGTH,
    NFE_SPEEDUPS,
    Operation,
    Precision,
    Prediction,
    block_speedup,
    slowdown,
)
from setblock.roofline.shape import LayerShape, ModelShape

Table = Mapping[int, tuple[float, ...]]

TABLE_3: Table = {
    1: (1.000, 1.001, 1.002, 1.004, 1.008, 1.015),
    4: (1.001, 1.003, 1.007, 1.015, 1.030, 1.061),
    8: (1.002, 1.006, 1.014, 1.029, 1.060, 1.903),
    16: (1.004, 1.012, 1.027, 1.058, 1.899, 3.799),
}
"""Batch -> slowdown of a block pass for each of `BLOCK_SIZES`, as printed for all cached positions but `LATER`."""

LATER = {(4, 64): 1.062}
"""(Batch, block size) -> what is printed from 4,096 cached positions on."""

TABLE_4: Table = {1: (1.992, 3.982, 7.955), 4: (1.967, 3.927, 7.824), 8: (1.936, 3.857, 7.657)}
"""Batch -> speed-up in seconds at k = 16 for each of `NFE_SPEEDUPS`."""

KV_LENGTHS = (16, 64, 256, 1024, 4096, 16384)

_HIDDEN, _FFN, _HEADS, _KV_HEADS, _HEAD_DIM = 4096, 4 * 4096, 32, 8, 128
FIGURE_11 = ModelShape(
    name="figure 11",
    hidden=_HIDDEN,
    heads=_HEADS,
    kv_heads=_HEADS * _KV_HEADS // _HEAD_DIM,  # so that keys and values are heads * KV heads wide
    head_dim=_HEAD_DIM,
    gated=False,
    vocabulary=0,
    tied=True,
    layers=(LayerShape(count=1, window=None, width=_HIDDEN * _FFN),),
)


@dataclass(frozen=True, kw_only=True)
class Printed(Prediction):
    """Predict passes as figure 11 does: attention is that of one request, whatever the batch."""

    def operations(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> Iterator[Operation]:
        """Return the operations of the pass."""
        for count in (batch, 1):
            for each in super().operations(tokens, batch=count, kv_length=kv_length, outputs=outputs):
                if (each.name == "attention") == (count is not batch):
                    yield each


PRINTED = Printed(shape=FIGURE_11, hardware=HARDWARE["paper-h100"], precision=Precision.of("float8"))


RIGHT: Mapping[str, Prediction] = {
    "the feed-forward layer's width": replace(
        PRINTED, shape=replace(FIGURE_11, layers=(LayerShape(count=1, window=None, width=_FFN),))
    ),
    "the bandwidth": replace(PRINTED, hardware=HARDWARE["h100"]),
    "the width of keys and values": replace(PRINTED, shape=replace(FIGURE_11, kv_heads=_KV_HEADS)),
    "attention of the whole batch": Prediction(shape=FIGURE_11, hardware=PRINTED.hardware, precision=PRINTED.precision),
    "three matrices in the feed-forward layer": replace(PRINTED, shape=replace(FIGURE_11, gated=True)),
}
"""What is set right -> the prediction with only that."""


def table_3(prediction: Prediction, kv_length: int) -> Table:
    """Return the slowdowns of a block pass."""
    at = {"kv_length": kv_length}
    return {batch: tuple(slowdown(prediction, k, batch=batch, **at) for k in BLOCK_SIZES) for batch in TABLE_3}


def table_4(prediction: Prediction) -> Table:
    """Return the speed-ups in seconds."""
    at = {"block_size": BLOCK_SIZE, "kv_length": KV_LENGTH}
    return {
        batch: tuple(block_speedup(prediction, nfe, batch=batch, **at) for nfe in NFE_SPEEDUPS) for batch in TABLE_4
    }


def printed_3(kv_length: int) -> Table:
    """Return what the paper prints for so many cached positions."""
    later = LATER if kv_length >= 4096 else {}
    return {
        batch: tuple(later.get((batch, k), value) for k, value in zip(BLOCK_SIZES, row, strict=True))
        for batch, row in TABLE_3.items()
    }


def lines(found: Table, printed: Table) -> Iterator[str]:
    """Yield a line for each batch. A cell that is printed otherwise is followed by that in brackets."""
    for batch, row in found.items():
        cells = [
            f"{value:.3f}" + (f" (printed: {there:.3f})" if f"{value:.3f}" != f"{there:.3f}" else "")
            for value, there in zip(row, printed[batch], strict=True)
        ]
        yield f"batch {batch:2}:  {'  '.join(cells)}"


def report(prediction: Prediction) -> Iterator[str]:
    """Yield both tables as lines."""
    for kv_length in KV_LENGTHS:
        yield f"Table 3, {kv_length:,} cached positions, k = {', '.join(map(str, BLOCK_SIZES))}"
        yield from lines(table_3(prediction, kv_length), printed_3(kv_length))
    yield f"Table 4, k = {BLOCK_SIZE}, NFE speed-ups {', '.join(map(str, NFE_SPEEDUPS))}"
    yield from lines(table_4(prediction), TABLE_4)


def wrong_cells(prediction: Prediction) -> int:
    """Return how many cells the paper prints otherwise."""
    return sum(line.count("printed:") for line in report(prediction))


def main() -> None:
    """Print both tables, and what each error changes."""
    print("\n".join(report(PRINTED)))
    wrong = wrong_cells(PRINTED)
    cells = len(KV_LENGTHS) * sum(map(len, TABLE_3.values())) + sum(map(len, TABLE_4.values()))
    print(f"{cells - wrong} of {cells} cells are the paper's, to every digit")
    for what, prediction in RIGHT.items():
        print(f"with {what} set right: {wrong_cells(prediction)} cells change")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
