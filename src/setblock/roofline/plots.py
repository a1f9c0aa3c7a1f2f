"""The roofline as a picture: slowdown against block size, speed-up against batch, and where speed-up ends.

Knows matplotlib (the extra `pictures`), which is imported when it is needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.errors import SetBlockError
from setblock.roofline.prediction import PassTimes, Prediction, block_speedup, last_paying_batch, slowdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SLOWDOWN_BATCHES = (1, 4, 8, 16, 32)
_BATCHES = tuple(2**i for i in range(9))  # 1..256
_KV_LENGTHS = (128, 1024, 8192, 32768)
_PAYING_KV_LENGTHS = tuple(2**i for i in range(7, 16))  # 128..32,768
_MOST = 2048  # the largest batch that is drawn
_SUFFIXES = (".png", ".svg", ".pdf")


def draw(
    prediction: PassTimes, path: Path, *, title: str, kv_length: int, block_size: int, nfe_speedups: Sequence[int]
) -> None:
    """Draw all three panels into one file.

    Args:
        path: ends in .png, .svg or .pdf.
        kv_length: of the first panel.
        block_size, nfe_speedups: of the other two; the middle panel shows the middle one.

    Raises:
        SetBlockError: matplotlib is not installed, the name has another ending, or the file can't be written.
    """
    if path.suffix not in _SUFFIXES:
        raise SetBlockError(f"--plot must end in one of {', '.join(_SUFFIXES)}, not {path.name!r}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetBlockError("--plot needs matplotlib: pip install 'setblock[pictures]'") from error
    nfe_speedups = [nfe for nfe in nfe_speedups if nfe <= block_size]
    with rc_context(
        {
            "svg.hashsalt": "setblock",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _slowdown_panel(left, prediction, kv_length=kv_length)
        nfe = nfe_speedups[len(nfe_speedups) // 2]
        _speedup_panel(middle, prediction, nfe=nfe, block_size=block_size)
        _paying_panel(right, prediction, nfe_speedups=nfe_speedups, block_size=block_size)
        figure.suptitle(title)
        try:
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise SetBlockError(f"can't write {path}: {error}") from error


def _slowdown_panel(axes: "Axes", prediction: PassTimes, *, kv_length: int) -> None:
    for index, batch in enumerate(_SLOWDOWN_BATCHES):
        values = [slowdown(prediction, k, batch=batch, kv_length=kv_length) for k in _BLOCK_SIZES]
        axes.plot(_BLOCK_SIZES, values, marker=".", label=f"{batch}", color=_shade(index, len(_SLOWDOWN_BATCHES)))
    _log_axis(axes, "x", _BLOCK_SIZES)
    axes.set(xlabel="block size k", ylabel="block pass / one-token pass", title=f"Slowdown, {kv_length:,} cached")
    axes.set_ylim(bottom=0)
    axes.legend(title="batch", frameon=False)


def _speedup_panel(axes: "Axes", prediction: PassTimes, *, nfe: int, block_size: int) -> None:
    at = {"block_size": block_size}
    for index, length in enumerate(_KV_LENGTHS):
        values = [block_speedup(prediction, nfe, batch=batch, kv_length=length, **at) for batch in _BATCHES]
        axes.plot(_BATCHES, values, marker=".", label=f"{length:,}", color=_shade(index, len(_KV_LENGTHS)))
    axes.axhline(1, color="0.5", linewidth=0.8, linestyle="--")
    _log_axis(axes, "x", _BATCHES)
    axes.set(xlabel="batch", ylabel="speed-up", title=f"Speed-up, k = {block_size}, NFE speed-up {nfe}")
    axes.set_ylim(0, nfe * 1.05)
    axes.legend(title="cached positions", frameon=False)


def _paying_panel(axes: "Axes", prediction: PassTimes, *, nfe_speedups: Sequence[int], block_size: int) -> None:
    for index, nfe in enumerate(nfe_speedups):
        paying = {
            length: last_paying_batch(prediction, nfe, block_size=block_size, kv_length=length, limit=_MOST)
            for length in _PAYING_KV_LENGTHS
        }
        ends = {length: batch for length, batch in paying.items() if batch}
        colour = _shade(index, len(nfe_speedups))
        axes.plot(list(ends), list(ends.values()), marker=".", label=f"NFE {nfe}", color=colour)
        endless = [length for length, batch in paying.items() if batch is None]
        axes.plot(endless, [_MOST / 1.25 ** (index + 1)] * len(endless), "^", color=colour, markersize=5)
    axes.plot([], [], "^", color="0.5", markersize=5, label=f"no end up to {_MOST}")
    if isinstance(prediction, Prediction) and prediction.hardware.memory is not None:
        fits = [prediction.batch_in_memory(length) or 0 for length in _PAYING_KV_LENGTHS]
        axes.plot(_PAYING_KV_LENGTHS, fits, color="0.5", linestyle="--", label="fits in memory")
    _log_axis(axes, "x", _PAYING_KV_LENGTHS)
    _log_axis(axes, "y", [2**i for i in range(12)])
    axes.set(
        xlabel="cached positions", ylabel="largest batch that gains", title="Where blocks stop paying", ylim=(1, _MOST)
    )
    axes.legend(frameon=False)


def _log_axis(axes: "Axes", which: str, ticks: Sequence[int]) -> None:
    axis: Any = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    axis.set_ticks(ticks, [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def _shade(index: int, count: int) -> tuple[float, ...]:
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * index / max(count - 1, 1))
