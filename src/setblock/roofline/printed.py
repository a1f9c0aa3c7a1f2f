"""The paper's roofline as its figure 11 computes it, slips included: tables 3 and 4 come out to every printed digit.

Kept apart from `prediction`, which is the corrected one, since nothing of this should be used for anything but comparison:

- the feed-forward width is hidden * FFN, 4,096 times too many, and outweighs everything else;
- a layer's keys and values are heads * KV heads = 256 wide, where 8 heads of 128 make 1,024;
- attention is that of one request, whatever the batch;
- 3.35 TB/s of bandwidth are taken for 3.35 TiB/s;
- there is no LM head.

The first two are read off the figure. That attention leaves out the batch and that the feed-forward layer has two matrices, not
three, is inferred: of the readings tried, this one gives every printed digit.
"""

from dataclasses import dataclass

_LINEAR_PEAK, _ATTENTION_PEAK = 1978e12, 989e12  # operations per second
_BANDWIDTH = 3.35 * 1024**4  # bytes per second
_HIDDEN = 4096
_FFN_WIDTH = _HIDDEN * (4 * 4096)
_KV_WIDTH = 32 * 8


@dataclass(frozen=True)
class PrintedPrediction:
    """Times of passes through one layer; FP8 throughout, a byte each."""

    def seconds(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> float:
        """See `setblock.roofline.prediction.PassTimes`; without a head, `outputs` does not matter."""
        rows, seen = batch * tokens, kv_length + tokens
        linear = sum(
            _gemm(rows, n, k)
            for n, k in (
                (_HIDDEN, _HIDDEN),  # queries
                (_KV_WIDTH, _HIDDEN),  # keys
                (_KV_WIDTH, _HIDDEN),  # values
                (_HIDDEN, _HIDDEN),  # attention output
                (_FFN_WIDTH, _HIDDEN),
                (_HIDDEN, _FFN_WIDTH),
            )
        )
        flops = 4 * tokens * seen * _HIDDEN
        moved = 2 * tokens * _HIDDEN + 2 * seen * _KV_WIDTH
        return linear + max(flops / _ATTENTION_PEAK, moved / _BANDWIDTH)


def _gemm(m: int, n: int, k: int) -> float:
    """Seconds of [m, k] times [k, n]."""
    return max(2 * m * n * k / _LINEAR_PEAK, (m * k + n * k + m * n) / _BANDWIDTH)
